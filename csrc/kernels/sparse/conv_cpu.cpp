// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv and its gradients on the CPU: tiles of sums in registers, over the rows of a block
// that have an offset, or over the pairs of an offset.
#include <atomic>
#include <vector>

#include "csrc/kernels/core/lanes.h"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

constexpr int64_t kBlockRows = 128;  // whose sums stay in the cache
constexpr int64_t kPanelBytes = 64;  // of channels next to one another
constexpr int kMostTileRows = 12;  // of sums in registers
constexpr int64_t kTaskOuts = 6 * kMostTileRows;  // of the gradient of a weight, in one task
constexpr int64_t kPairs = 64;  // of that gradient at a time

template <int kValue>
using Constant = std::integral_constant<int, kValue>;
template <class Real>
constexpr int64_t kWidth = kPanelBytes / static_cast<int64_t>(sizeof(Real));

int64_t padded(int64_t channels, int64_t width) { return (channels + width - 1) / width * width; }

// The rows of a tensor in the type of the sums: the tensor itself where it has that type.
template <class T, class Real>
const Real* widened(const void* data, int64_t count, Real* room, const ParallelFor& parallel_for) {
  if constexpr (std::is_same_v<T, Real>) {
    return static_cast<const Real*>(data);
  } else {
    for_each_index(parallel_for, count, 1 << 14,
                   [&](int64_t i) { room[i] = widen(static_cast<const T*>(data)[i]); });
    return room;
  }
}
template <class T, class Real>
Real* room_for(int64_t count, Workspace& workspace) {
  return std::is_same_v<T, Real> ? nullptr : workspace.take<Real>(count);
}

// Calls task(i) for every i below count, the next one on whichever thread is free; memory() makes
// what a thread uses for all of its tasks. It is not made in vectorized code, where compilers warn
// of its release.
template <class Memory, class Task>
void share_tasks(const ParallelFor& parallel_for, int64_t count, const Memory& memory,
                 const Task& task) {
  std::atomic<int64_t> next{0};
  parallel_for(count, [&](int64_t, int64_t) {
    auto own = memory();
    for (int64_t i = next++; i < count; i = next++) task(i, own);
  });
}

// ---- tiles

// A step of a tile adds rows[r][step * row_stride] times the panels at
// panels[step * line_stride + p * panel_stride] to sums[r], for each of its rows r and panels p.
template <class Real>
struct Tile {
  const Real* rows[kMostTileRows];
  Real* sums[kMostTileRows];
  const Real* panels;
  int64_t steps, row_stride, line_stride, panel_stride;
};

template <class Isa, int kRows, int kPanels, class Real>
TORCHVOX_INLINE void add_products(const Tile<Real>& tile) {
  using Vector = typename Lanes<Real, Isa>::Vector;
  constexpr int kParts = kPanelBytes / Isa::kBytes, kVectors = kPanels * kParts;
  constexpr int64_t kLanes = Isa::kBytes / sizeof(Real);
  Vector sums[kRows][kVectors], line[kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) memcpy(&sums[r][v], tile.sums[r] + v * kLanes, Isa::kBytes);
  }
  for (int64_t step = 0; step < tile.steps; ++step) {
    const Real* panels = tile.panels + step * tile.line_stride;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      memcpy(&line[v], panels + v / kParts * tile.panel_stride + v % kParts * kLanes, Isa::kBytes);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Real x = tile.rows[r][step * tile.row_stride];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Isa::add_product(x, line[v], sums[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) memcpy(tile.sums[r] + v * kLanes, &sums[r][v], Isa::kBytes);
  }
}

// Calls body(panel, panels, rows) for groups of panels that cover `count`, with the size of their
// tiles as constants: as many sums as there are registers for.
template <class Isa, class Body>
TORCHVOX_INLINE void for_each_group(int64_t count, const Body& body) {
  int64_t panel = 0;
  if constexpr (Isa::kRegisters == 32) {
    for (; panel + 4 <= count; panel += 4) body(panel, Constant<4>(), Constant<6>());
    for (; panel + 2 <= count; panel += 2) body(panel, Constant<2>(), Constant<12>());
    for (; panel < count; ++panel) body(panel, Constant<1>(), Constant<12>());
  } else {
    for (; panel < count; ++panel) body(panel, Constant<1>(), Constant<6>());
  }
}

// ---- values

template <class T>
struct ConvWork {
  using Real = compute_t<T>;
  int64_t columns;  // output channels and padding
  Real* weight;  // [volume, panels, in_channels, kWidth]
  Real* features;

  ConvWork(const SparseConvArgs& args, Workspace& workspace)
      : columns(padded(args.out_channels, kWidth<Real>)),
        weight(workspace.take<Real>(args.table.volume * args.in_channels * columns)),
        features(room_for<T, Real>(args.table.sources * args.in_channels, workspace)) {}
};

template <class T, class Real>
void pack_weight(const SparseConvArgs& args, const ConvWork<T>& work,
                 const ParallelFor& parallel_for) {
  const T* from = static_cast<const T*>(args.weight.data);
  const int64_t panels = work.columns / kWidth<Real>;
  const int64_t per_task = 1 + (1 << 15) / (args.in_channels * kWidth<Real> + 1);
  for_each_index(parallel_for, args.table.volume * panels, per_task, [&](int64_t i) {
    const int64_t k = i / panels, first = i % panels * kWidth<Real>;
    Real* to = work.weight + i * args.in_channels * kWidth<Real>;
    const int64_t outs = std::min(kWidth<Real>, args.out_channels - first);
    std::fill_n(to, args.in_channels * kWidth<Real>, Real(0));
    for (int64_t out = 0; out < outs; ++out) {
      for (int64_t in = 0; in < args.in_channels; ++in) {
        to[in * kWidth<Real> + out] =
            widen(from[args.weight.at(first + out, k, in, args.table.volume)]);
      }
    }
  });
}

// The rows [begin, end) of a table that have an offset, counted from begin, and what they read.
template <int64_t kMost>
struct Present {
  int32_t rows[kMost], sources[kMost];
  int64_t count = 0;

  // Without branches, which could not be predicted.
  void find(const SparseTable& table, int64_t offset, int64_t begin, int64_t end) {
    const int32_t* entries = table.entries + offset * table.rows + begin;
    const auto limit = static_cast<uint32_t>(table.valid_sources());
    count = 0;
    for (int32_t row = 0; row < end - begin; ++row) {
      rows[count] = row;
      sources[count] = entries[row];
      count += static_cast<uint32_t>(entries[row]) < limit;
    }
  }
};

// Writes the rows [begin, end). sums: [kBlockRows + 1, columns], a row more for what a tile lacks.
template <class Isa, class T, class Real>
void write_block(const SparseConvArgs& args, const ConvWork<T>& work, const Real* features,
                 int64_t begin, int64_t end, Real* sums) {
  const int64_t columns = work.columns, ins = args.in_channels;
  const T* bias = static_cast<const T*>(args.bias);
  for (int64_t c = 0; c < columns; ++c) {
    sums[c] = bias && c < args.out_channels ? widen(bias[c]) : Real(0);
  }
  for (int64_t row = 1; row < end - begin; ++row) {
    std::copy_n(sums, columns, sums + row * columns);
  }
  Present<kBlockRows> present;
  Tile<Real> tile;
  tile.steps = ins, tile.row_stride = 1, tile.line_stride = kWidth<Real>;
  tile.panel_stride = ins * kWidth<Real>;
  for (int64_t k = 0; k < args.table.volume; ++k) {
    present.find(args.table, k, begin, end);
    for_each_group<Isa>(columns / kWidth<Real>, [&](int64_t panel, auto panels, auto rows) {
      const int64_t column = panel * kWidth<Real>;
      tile.panels = work.weight + (k * columns + column) * ins;
      for (int64_t first = 0; first < present.count; first += rows()) {
        for (int r = 0; r < rows(); ++r) {
          const bool used = first + r < present.count;
          const int64_t at = used ? first + r : first;
          tile.rows[r] = features + int64_t{present.sources[at]} * ins;
          tile.sums[r] = sums + (used ? present.rows[at] : kBlockRows) * columns + column;
        }
        add_products<Isa, rows(), panels()>(tile);
      }
    });
  }
  for (int64_t row = begin; row < end; ++row, sums += columns) {
    T* out = static_cast<T*>(args.out) + row * args.out_channels;
    for (int64_t c = 0; c < args.out_channels; ++c) out[c] = finished<T>(args, row, c, sums[c]);
  }
}

template <class T>
void convolve(const SparseConvArgs& args, void* memory, const ParallelFor& parallel_for) {
  using Real = compute_t<T>;
  const auto work = carve<ConvWork<T>>(memory, args);
  pack_weight<T, Real>(args, work, parallel_for);
  const Real* features =
      widened<T>(args.features, args.table.sources * args.in_channels, work.features, parallel_for);
  const int64_t valid = args.table.valid(), outs = args.out_channels, rows = args.table.rows;
  const int64_t block = std::clamp<int64_t>(rows / 64, 2 * kMostTileRows, kBlockRows);
  const auto sums_of_block = [&] {
    return std::vector<Real>(static_cast<size_t>((kBlockRows + 1) * work.columns));
  };
  share_tasks(parallel_for, (rows + block - 1) / block, sums_of_block, [&](int64_t i, auto& sums) {
    const int64_t begin = i * block, last = std::min(begin + block, rows);
    const int64_t end = clamp_index(valid, begin, last);
    if (begin < end) {
      run_vectorized(sparse_cpu_plan, [&](auto isa) {
        write_block<decltype(isa)>(args, work, features, begin, end, sums.data());
      });
    }
    std::fill_n(static_cast<T*>(args.out) + end * outs, (last - end) * outs, narrow<T>(Real(0)));
  });
}

// ---- gradients of weight and bias

template <class T>
struct WeightWork {
  using Real = compute_t<T>;
  Real* features;
  Real* grad;
  Real* biases;  // [segments, out_channels]

  WeightWork(const SparseConvWeightArgs& args, Workspace& workspace)
      : features(room_for<T, Real>(args.table.sources * args.in_channels, workspace)),
        grad(room_for<T, Real>(args.table.rows * args.out_channels, workspace)),
        biases(args.grad_bias ? workspace.take<Real>(args.segments() * args.out_channels)
                              : nullptr) {}
};

// The memory of a thread: the pairs of an offset in a segment, some of their rows side by side, and
// sums.
template <class Real>
struct OffsetSums {
  Present<kSparseSegment> pairs;
  std::vector<Real> grad, features;  // [kPairs, kTaskOuts], [kPairs, columns]
  std::vector<Real> part, total;  // [kTaskOuts, columns]

  explicit OffsetSums(int64_t columns)
      : grad(kPairs * kTaskOuts),
        features(static_cast<size_t>(kPairs * columns)),
        part(static_cast<size_t>(kTaskOuts * columns)),
        total(part.size()) {}
};

// Adds the products of pairs first, first + 1, .. of a segment from row `begin`.
template <class Isa, class Real>
void add_pairs(const SparseConvWeightArgs& args, const Real* features, const Real* grad,
               int64_t begin, int64_t first, int64_t outs, OffsetSums<Real>& sums) {
  const int64_t ins = args.in_channels, columns = padded(ins, kWidth<Real>);
  const int64_t count = std::min(kPairs, sums.pairs.count - first);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = begin + sums.pairs.rows[first + i], source = sums.pairs.sources[first + i];
    std::copy_n(grad + row * args.out_channels, outs, sums.grad.data() + i * kTaskOuts);
    std::copy_n(features + source * ins, ins, sums.features.data() + i * columns);
  }
  Tile<Real> tile;
  tile.steps = count, tile.row_stride = kTaskOuts, tile.line_stride = columns;
  tile.panel_stride = kWidth<Real>;
  for_each_group<Isa>(columns / kWidth<Real>, [&](int64_t panel, auto panels, auto rows) {
    const int64_t column = panel * kWidth<Real>;
    tile.panels = sums.features.data() + column;
    for (int64_t out = 0; out < outs; out += rows()) {
      for (int r = 0; r < rows(); ++r) {
        tile.rows[r] = sums.grad.data() + out + r;
        tile.sums[r] = sums.part.data() + (out + r) * columns + column;
      }
      add_products<Isa, rows(), panels()>(tile);
    }
  });
}

// Writes the gradient at one offset for the output channels from first_out, one segment after the
// other.
template <class Isa, class T, class Real>
void sum_offset(const SparseConvWeightArgs& args, const Real* features, const Real* grad,
                int64_t offset, int64_t first_out, int64_t valid, OffsetSums<Real>& sums) {
  const int64_t ins = args.in_channels, columns = padded(ins, kWidth<Real>);
  const int64_t outs = std::min(kTaskOuts, args.out_channels - first_out);
  auto& [pairs, some_grad, some_features, part, total] = sums;
  std::fill(total.begin(), total.end(), Real(0));
  for (int64_t begin = 0; begin < valid; begin += kSparseSegment) {
    pairs.find(args.table, offset, begin, std::min(begin + kSparseSegment, valid));
    std::fill(part.begin(), part.end(), Real(0));
    for (int64_t first = 0; first < pairs.count; first += kPairs) {
      add_pairs<Isa>(args, features, grad + first_out, begin, first, outs, sums);
    }
    for (size_t i = 0; i < total.size(); ++i) total[i] += part[i];
  }
  for (int64_t out = 0; out < outs; ++out) {
    T* to =
        static_cast<T*>(args.grad_weight) + ((first_out + out) * args.table.volume + offset) * ins;
    const Real* from = total.data() + out * columns;
    for (int64_t in = 0; in < ins; ++in) to[in] = narrow<T>(quiet(from[in]));
  }
}

// Adds segments in order, rounded once. parts: [segments, count].
template <class T, class Real>
void add_segments(const Real* parts, int64_t segments, int64_t count, void* out,
                  const ParallelFor& parallel_for) {
  if (!out) return;
  for_each_index(parallel_for, count, 4096, [&](int64_t i) {
    Real sum = 0;
    for (int64_t s = 0; s < segments; ++s) sum += parts[s * count + i];
    static_cast<T*>(out)[i] = narrow<T>(quiet(sum));
  });
}

template <class T>
void differentiate(const SparseConvWeightArgs& args, void* memory,
                   const ParallelFor& parallel_for) {
  using Real = compute_t<T>;
  const auto work = carve<WeightWork<T>>(memory, args);
  const int64_t valid = args.table.valid(), volume = args.table.volume, outs = args.out_channels;
  const Real* features =
      widened<T>(args.features, args.table.sources * args.in_channels, work.features, parallel_for);
  const Real* grad = widened<T>(args.grad, args.table.rows * outs, work.grad, parallel_for);
  if (args.grad_weight) {
    const int64_t parts = (outs + kTaskOuts - 1) / kTaskOuts;
    const auto memory = [&] { return OffsetSums<Real>(padded(args.in_channels, kWidth<Real>)); };
    share_tasks(parallel_for, volume * parts, memory, [&](int64_t task, OffsetSums<Real>& sums) {
      run_vectorized(sparse_cpu_plan, [&](auto isa) {
        sum_offset<decltype(isa), T>(args, features, grad, task / parts, task % parts * kTaskOuts,
                                     valid, sums);
      });
    });
  }
  if (args.grad_bias) {
    for_each_index(parallel_for, args.segments(), 1, [&](int64_t segment) {
      Real* sums = work.biases + segment * outs;
      std::fill_n(sums, outs, Real(0));
      const int64_t begin = segment * kSparseSegment;
      for (int64_t row = begin; row < std::min(begin + kSparseSegment, valid); ++row) {
        for (int64_t c = 0; c < outs; ++c) sums[c] += grad[row * outs + c];
      }
    });
  }
  add_segments<T>(work.biases, args.segments(), outs, args.grad_bias, parallel_for);
}

}  // namespace

int64_t workspace_bytes_cpu(const SparseConvArgs& args) {
  return with_point_type(args.dtype,
                         [&](auto type) { return carved_bytes<ConvWork<decltype(type)>>(args); });
}
void run_cpu(const SparseConvArgs& args, void* memory, const ParallelFor& parallel_for) {
  with_point_type(args.dtype,
                  [&](auto type) { convolve<decltype(type)>(args, memory, parallel_for); });
}

int64_t workspace_bytes_cpu(const SparseConvWeightArgs& args) {
  return with_point_type(args.dtype,
                         [&](auto type) { return carved_bytes<WeightWork<decltype(type)>>(args); });
}
void run_cpu(const SparseConvWeightArgs& args, void* memory, const ParallelFor& parallel_for) {
  with_point_type(args.dtype,
                  [&](auto type) { differentiate<decltype(type)>(args, memory, parallel_for); });
}

}  // namespace torchvox
