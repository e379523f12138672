// SPDX-License-Identifier: Apache-2.0
//
// The operators on pillars on the CPU. pillar_encode takes tasks of 64 pillars, 16 channels at a
// time in loops that vectorize; its gradient sums groups of 32 rows, pillar_moments groups of 32
// points, over the tree of tree_sum.h. pillar_scatter takes tasks of rows.
#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/moments.h"
#include "csrc/kernels/pillars/scatter.h"

namespace torchvox {
namespace {

struct MomentsWork {
  HostPillarLists list_work;
  double* means;  // [rows, 3] of the calculation's type
  HostTree tree;

  MomentsWork(const PillarMomentsArgs& args, Workspace& workspace)
      : list_work(args.map, workspace),
        means(workspace.take<double>(3 * args.map.rows.rows)),
        tree(args.map.count, args.entries(), workspace) {}
};

// The sums [entries] over group `group` of 32 points.
template <class T, class Real>
void sum_group(const PillarMomentsArgs& args, const Real* means, int64_t group, double* sums) {
  const PillarMap& map = args.map;
  const int64_t size = args.size();
  std::fill_n(sums, args.entries(), 0.0);
  std::vector<Real> g(size, Real(1));
  const int64_t end = std::min((group + 1) * kTreeWidth, map.count);
  for (int64_t point = group * kTreeWidth; point < end; ++point) {
    const int64_t row = map.row_of(point);
    if (row < 0) continue;
    PillarFrame<Real> frame;
    frame.place(map, row);
    for (int axis = 0; axis < 3; ++axis) frame.mean[axis] = means[3 * row + axis];
    for (int64_t c = 1; c < size; ++c) g[c] = decorated<T>(map, frame, point, c - 1);
    double* sum = sums;
    for (int64_t i = 0; i < size; ++i) {
      for (int64_t j = i; j < size; ++j, ++sum) *sum = plus_product(*sum, g[i], g[j]);
    }
  }
}

template <class T, class Real>
void run_typed(const PillarMomentsArgs& args, const MomentsWork& work,
               const ParallelFor& parallel_for) {
  const PillarMap& map = args.map;
  Real* means = reinterpret_cast<Real*>(work.means);
  int64_t pillars = 0;
  for (int64_t row = 0; row < map.rows.rows; ++row) pillars += map.rows.cell(row) >= 0;
  for_each_index(parallel_for, map.rows.rows, 256, [&](int64_t row) {
    if (map.rows.cell(row) < 0) return;
    PillarFrame<Real> frame;
    pillar_mean<T>(map, work.list_work.lists, row, map.stored(row), frame);
    std::copy_n(frame.mean, 3, means + 3 * row);
  });
  for_each_index(parallel_for, work.tree.groups(), 8,
                 [&](int64_t group) { sum_group<T>(args, means, group, work.tree.of(group)); });
  const double* sums = work.tree.total(parallel_for);
  for (int64_t e = 0; e < args.entries(); ++e) args.moments[e] = quiet(sums[e]);
  if (map.padded && map.max_points >= 0) {
    args.moments[0] = static_cast<double>(pillars) * static_cast<double>(map.max_points);
  }
}

constexpr int64_t kRowsPerTask = 256;
constexpr int64_t kPillarsPerTask = 64;
constexpr int64_t kBlock = 16;  // channels of a loop that becomes vectors

// The weights as the loops over channels read them: one array per column.
template <class Real>
struct ChannelColumns {
  int64_t padded;
  Real *a, *p, *m, *bias, *feature;  // [3, padded] three times, [padded], [features, padded]

  ChannelColumns(const PillarEncodeArgs& args, Workspace& workspace)
      : padded((args.outputs + kBlock - 1) / kBlock * kBlock),
        a(workspace.take<Real>(3 * padded)),
        p(workspace.take<Real>(3 * padded)),
        m(workspace.take<Real>(3 * padded)),
        bias(workspace.take<Real>(padded)),
        feature(workspace.take<Real>((args.map.columns - 3) * padded)) {}

  void fill(const PillarEncodeArgs& args) const {
    for (int64_t c = 0; c < padded; ++c) {
      PillarChannel<Real> channel = {};
      if (c < args.outputs) channel.load(args, c);
      bias[c] = channel.bias;
      for (int axis = 0; axis < 3; ++axis) {
        a[axis * padded + c] = channel.a[axis];
        p[axis * padded + c] = channel.p[axis];
        m[axis * padded + c] = channel.m[axis];
      }
      for (int64_t f = 0; f < args.map.columns - 3; ++f) {
        feature[f * padded + c] = c < args.outputs ? feature_weight<Real>(args, c, 3 + f) : Real(0);
      }
    }
  }
};

template <class Real>
struct EncodeWork {
  HostPillarLists list_work;
  HostCellRows cells;
  ChannelColumns<Real> channels;

  EncodeWork(const PillarEncodeArgs& args, Workspace& workspace)
      : list_work(args.map, workspace),
        cells(args.map.rows, workspace),
        channels(args, workspace) {}
};

// kBlock channels of a pillar, over all of its n points, whose u are `offsets` [n, 3].
template <class T, class Real>
TORCHVOX_INLINE void encode_block(const PillarEncodeArgs& args, const EncodeWork<Real>& work,
                                  int64_t first, const Real* offsets, const int64_t* points,
                                  int64_t n, const PillarFrame<Real>& frame,
                                  PillarOutput<Real>* out) {
  const ChannelColumns<Real>& w = work.channels;
  const int64_t features = args.map.columns - 3;
  Real best[kBlock] = {};
  int32_t winner[kBlock] = {};
  for (int64_t slot = 0; slot < n; ++slot) {
    const Real* u = offsets + 3 * slot;
    Real y[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) {
      const Real a[3] = {w.a[first + j], w.a[w.padded + first + j], w.a[2 * w.padded + first + j]};
      y[j] = of_offset(a, u);
    }
    for (int64_t f = 0; f < features; ++f) {
      const Real value = args.map.value<T, Real>(points[slot], 3 + f);
      const Real* weight = w.feature + f * w.padded + first;
      for (int64_t j = 0; j < kBlock; ++j) y[j] = fma_rn(weight[j], value, y[j]);
    }
    for (int64_t j = 0; j < kBlock; ++j) {
      const bool better = beats(y[j], best[j]) | (slot == 0);
      best[j] = better ? y[j] : best[j];
      winner[j] = better ? static_cast<int32_t>(slot) : winner[j];
    }
  }
  const bool has_padding = args.map.has_padding(n);
  for (int64_t j = 0; j < kBlock; ++j) {
    const int64_t c = first + j;
    const Real p[3] = {w.p[c], w.p[w.padded + c], w.p[2 * w.padded + c]};
    const Real m[3] = {w.m[c], w.m[w.padded + c], w.m[2 * w.padded + c]};
    const Real term = frame_term(frame, p, m, w.bias[c]);
    out[j] = finish_channel(best[j], winner[j], term, w.bias[c], n, has_padding);
  }
}

// The rows [begin, end): their values of the canvas, winners and means.
template <class T, class Real>
TORCHVOX_INLINE void encode_rows(const PillarEncodeArgs& args, const EncodeWork<Real>& work,
                                 int64_t begin, int64_t end) {
  const PillarMap& map = args.map;
  const PillarLists& lists = work.list_work.lists;
  std::vector<Real> offsets;
  std::vector<int64_t> points;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t cell = work.cells.cell_of(map.rows, row);
    PillarFrame<Real> frame = {};
    const int64_t n = cell >= 0 ? map.stored(row) : 0;
    if (cell >= 0) {
      frame.place(map, row);
      pillar_mean<T>(map, lists, row, n, frame);
    }
    if (args.mean != nullptr) {
      for (int axis = 0; axis < 3; ++axis) {
        static_cast<Real*>(args.mean)[3 * row + axis] = quiet(frame.mean[axis]);
      }
    }
    points.resize(n);
    offsets.resize(3 * n);
    for (int64_t slot = 0; slot < n; ++slot) {
      points[slot] = lists.at(map, lists.begin(row), slot);
      for (int axis = 0; axis < 3; ++axis) {
        offsets[3 * slot + axis] = map.value<T, Real>(points[slot], axis) - frame.center[axis];
      }
    }
    for (int64_t first = 0; first < args.outputs; first += kBlock) {
      const int64_t channels = std::min(kBlock, args.outputs - first);
      PillarOutput<Real> out[kBlock];
      std::fill_n(out, kBlock, PillarOutput<Real>{Real(0), kNobodyWon});
      if (cell >= 0) {
        encode_block<T>(args, work, first, offsets.data(), points.data(), n, frame, out);
      }
      for (int64_t j = 0; j < channels; ++j) {
        if (cell >= 0) {
          store_as(args.canvas, args.out_dtype, cell * args.outputs + first + j, out[j].value);
        }
        if (args.arg == nullptr) continue;
        const int32_t slot = out[j].arg;
        args.arg[row * args.outputs + first + j] =
            slot < 0 ? slot : static_cast<int32_t>(points[slot]);
      }
    }
  }
}

template <class T, class Real>
void run_typed(const PillarEncodeArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<EncodeWork<Real>>(memory, args);
  work.list_work.fill(args.map);
  work.cells.fill(args.map.rows);
  work.channels.fill(args);
  work.cells.write_zeros(args.canvas, args.map.rows, args.outputs, args.out_dtype, parallel_for);
  for_each_range(parallel_for, args.map.rows.rows, kPillarsPerTask,
                 [&](int64_t begin, int64_t end) {
                   run_vectorized(pillar_cpu_plan, [&] { encode_rows<T>(args, work, begin, end); });
                 });
}

// The partial sums of group `group` of 32 rows, all channels and columns. kColumns as in
// RowGradient.
template <class T, class Real, int kColumns>
void sum_group(const PillarEncodeBackwardArgs& args, int64_t group, double* sums) {
  constexpr int kSums = kColumns > 0 ? kColumns + 7 : 1;
  const int64_t columns = args.map.decorated();
  const int64_t end = std::min((group + 1) * kTreeWidth, args.map.rows.rows);
  for (int64_t channel = 0; channel < args.outputs; ++channel) {
    double* to = sums + channel * (columns + 1);
    for (int64_t pass = 0; pass < (kColumns > 0 ? 1 : columns + 1); ++pass) {
      double sum[kSums] = {};
      for (int64_t row = group * kTreeWidth; row < end; ++row) {
        RowGradient<T, Real, kColumns> share;
        share.find(args, row, end, channel);
        share.read(args, row, channel);
        share.add(args, pass, sum);
      }
      if (kColumns == 0) {
        to[pass] = sum[0];
      } else {
        std::copy_n(sum, columns, to);
        to[columns] = sum[kSums - 1];
      }
    }
  }
}

}  // namespace

int64_t workspace_bytes_cpu(const PillarMomentsArgs& args) {
  return carved_bytes<MomentsWork>(args);
}

void run_cpu(const PillarMomentsArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<MomentsWork>(memory, args);
  work.list_work.fill(args.map);
  with_pillar_types(args.map.dtype, false, [&](auto type, auto real) {
    run_typed<decltype(type), decltype(real)>(args, work, parallel_for);
  });
}

void run_cpu(const PillarScatterArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto cells = carve<HostCellRows>(memory, args.rows);
  cells.fill(args.rows);
  cells.write_zeros(args.canvas, args.rows, args.channels, args.dtype, parallel_for);
  const int64_t bytes = args.channels * bytes_of(args.dtype);
  for_each_index(parallel_for, args.rows.rows, kRowsPerTask, [&](int64_t row) {
    const int64_t cell = cells.cell_of(args.rows, row);
    if (cell < 0 || bytes == 0) return;
    std::memcpy(static_cast<char*>(args.canvas) + cell * bytes,
                static_cast<const char*>(args.feats) + row * bytes, bytes);
  });
}

void run_cpu(const PillarScatterBackwardArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto cells = carve<HostCellRows>(memory, args.rows);
  cells.fill(args.rows);
  const int64_t size = bytes_of(args.dtype);
  for_each_index(parallel_for, args.rows.rows, kRowsPerTask, [&](int64_t row) {
    const int64_t cell = cells.cell_of(args.rows, row);
    char* to = static_cast<char*>(args.grad_feats) + row * args.channels * size;
    if (cell < 0) {
      std::memset(to, 0, args.channels * size);
      return;
    }
    const int64_t from = args.rows.strided(cell, 0, args.grad_strides);
    for (int64_t c = 0; c < args.channels; ++c) {
      const int64_t at = from + c * args.grad_strides[1];
      std::memcpy(to + c * size, static_cast<const char*>(args.grad) + at * size, size);
    }
  });
}

int64_t workspace_bytes_cpu(const PillarEncodeArgs& args) {
  return carved_bytes<EncodeWork<double>>(args);
}

void run_cpu(const PillarEncodeArgs& args, void* memory, const ParallelFor& parallel_for) {
  with_pillar_types(args.map.dtype, args.wide(), [&](auto type, auto real) {
    run_typed<decltype(type), decltype(real)>(args, memory, parallel_for);
  });
}

int64_t workspace_bytes_cpu(const PillarEncodeBackwardArgs& args) {
  return carved_bytes<HostTree>(args.map.rows.rows, args.outputs * (args.map.decorated() + 1));
}

void run_cpu(const PillarEncodeBackwardArgs& args, void* memory, const ParallelFor& parallel_for) {
  const int64_t values = args.outputs * (args.map.decorated() + 1);
  const auto tree = carve<HostTree>(memory, args.map.rows.rows, values);
  with_pillar_columns(args.map, args.wide, [&](auto type, auto real, auto columns) {
    for_each_index(parallel_for, tree.groups(), 1, [&](int64_t group) {
      sum_group<decltype(type), decltype(real), columns()>(args, group, tree.of(group));
    });
  });
  const double* sums = tree.total(parallel_for);
  for (int64_t i = 0; i < values; ++i) store_gradient(args, i, sums[i]);
}

}  // namespace torchvox
