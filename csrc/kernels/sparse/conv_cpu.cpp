// SPDX-License-Identifier: Apache-2.0
//
// sparse_conv and its gradients on the CPU: tiles of sums in registers, over the rows of a block
// that have an offset.
#include <vector>

#include "csrc/kernels/sparse/conv.h"

namespace torchvox {
namespace {

constexpr int64_t kBlockRows = 128;  // whose sums stay in the cache
constexpr int kTileRows = 6, kTileBytes = 64;  // of sums in registers
constexpr int64_t kTaskOuts = 4 * kTileRows;  // of the gradient of a weight, in one task

template <class Real>
constexpr int kWidth = kTileBytes / static_cast<int>(sizeof(Real));

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

// ---- values

template <class T>
struct ConvWork {
  using Real = compute_t<T>;
  int64_t columns;  // output channels and padding
  Real* weight;  // [volume, in_channels, columns]
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
  for_each_index(parallel_for, args.table.volume * args.in_channels, 16, [&](int64_t line) {
    const int64_t k = line / args.in_channels, in = line % args.in_channels;
    for (int64_t out = 0; out < work.columns; ++out) {
      work.weight[line * work.columns + out] = out < args.out_channels
          ? widen(from[args.weight.at(out, k, in, args.table.volume)])
          : Real(0);
    }
  });
}

// Adds the products of kRows rows to their sums, of kWidth channels.
template <int kRows, class Real>
TORCHVOX_INLINE void add_products(const Real* const* x, const Real* weight, int64_t in_channels,
                                  int64_t columns, Real* const* sums) {
  Real tile[kRows][kWidth<Real>];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWidth<Real>; ++c) tile[r][c] = sums[r][c];
  }
  for (int64_t in = 0; in < in_channels; ++in) {
    const Real* w = weight + in * columns;
    for (int r = 0; r < kRows; ++r) {
      const Real value = x[r][in];
      for (int c = 0; c < kWidth<Real>; ++c) tile[r][c] = fma_rn(value, w[c], tile[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kWidth<Real>; ++c) sums[r][c] = tile[r][c];
  }
}

// The rows [begin, end) of a block that have an offset, and what they read.
struct Present {
  int32_t rows[kBlockRows], sources[kBlockRows];
  int count = 0;

  void find(const SparseTable& table, int64_t offset, int64_t begin, int64_t end, int64_t limit) {
    count = 0;
    for (int64_t row = begin; row < end; ++row) {
      const int32_t source = table.at(offset, row, limit);
      if (source < 0) continue;
      rows[count] = static_cast<int32_t>(row - begin);
      sources[count++] = source;
    }
  }
};

template <class T, class Real>
void sum_block(const SparseConvArgs& args, const ConvWork<T>& work, const Real* features,
               int64_t begin, int64_t end, Real* sums) {
  const int64_t columns = work.columns, in = args.in_channels;
  const int64_t limit = args.table.valid_sources();
  const T* bias = static_cast<const T*>(args.bias);
  for (int64_t c = 0; c < columns; ++c) {
    sums[c] = bias && c < args.out_channels ? widen(bias[c]) : Real(0);
  }
  for (int64_t row = 1; row < end - begin; ++row) {
    std::copy_n(sums, columns, sums + row * columns);
  }
  Present present;
  for (int64_t k = 0; k < args.table.volume; ++k) {
    present.find(args.table, k, begin, end, limit);
    for (int64_t c = 0; c < columns && present.count > 0; c += kWidth<Real>) {
      const Real* weight = work.weight + k * in * columns + c;
      const Real* x[kTileRows];
      Real* tile[kTileRows];
      for (int first = 0; first < present.count;) {
        const int rows = std::min(kTileRows, present.count - first);
        for (int r = 0; r < rows; ++r) {
          x[r] = features + int64_t{present.sources[first + r]} * in;
          tile[r] = sums + present.rows[first + r] * columns + c;
        }
        if (rows == kTileRows) {
          add_products<kTileRows>(x, weight, in, columns, tile);
        } else {
          for (int r = 0; r < rows; ++r) add_products<1>(x + r, weight, in, columns, tile + r);
        }
        first += rows;
      }
    }
  }
}

template <class T>
void convolve(const SparseConvArgs& args, void* memory, const ParallelFor& parallel_for) {
  using Real = compute_t<T>;
  const auto work = carve<ConvWork<T>>(memory, args);
  pack_weight<T, Real>(args, work, parallel_for);
  const Real* features =
      widened<T>(args.features, args.table.sources * args.in_channels, work.features, parallel_for);
  const int64_t valid = args.table.valid(), columns = work.columns;
  T* out = static_cast<T*>(args.out);
  for_each_range(parallel_for, args.table.rows, kBlockRows, [&](int64_t first, int64_t last) {
    std::vector<Real> sums(static_cast<size_t>(kBlockRows * columns));
    for (int64_t begin = first; begin < last; begin += kBlockRows) {
      const int64_t end = std::min({begin + kBlockRows, last, valid});
      if (begin < end) {
        run_vectorized(sparse_cpu_plan,
                       [&] { sum_block(args, work, features, begin, end, sums.data()); });
      }
      for (int64_t row = begin; row < std::min(begin + kBlockRows, last); ++row) {
        for (int64_t c = 0; c < args.out_channels; ++c) {
          out[row * args.out_channels + c] = row < end
              ? finished<T>(args, row, c, sums[static_cast<size_t>((row - begin) * columns + c)])
              : narrow<T>(Real(0));
        }
      }
    }
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

// Sums of one offset over a list of pairs (row, source), for kTileRows output channels and kWidth
// input channels, or fewer.
template <bool kWhole, class Real>
TORCHVOX_INLINE void sum_pairs(const std::vector<std::pair<int32_t, int32_t>>& pairs,
                               const Real* grad, int64_t out_channels, const Real* features,
                               int64_t in_channels, int outs, int ins, Real* to, int64_t stride) {
  const int rows = kWhole ? kTileRows : outs, width = kWhole ? kWidth<Real> : ins;
  Real tile[kTileRows][kWidth<Real>] = {};
  for (const auto& [row, source] : pairs) {
    const Real* g = grad + row * out_channels;
    const Real* x = features + source * in_channels;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < width; ++c) tile[r][c] = fma_rn(g[r], x[c], tile[r][c]);
    }
  }
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < width; ++c) to[r * stride + c] = tile[r][c];
  }
}

// The memory of a task. Made outside of vectorized code, where compilers warn of its release.
template <class Real>
struct OffsetSums {
  std::vector<std::pair<int32_t, int32_t>> pairs;  // (row, source) of a segment
  std::vector<Real> part, total;  // [output channels, in_channels]
};

// Writes the gradient at one offset for the output channels from first_out, one segment after the
// other.
template <class T, class Real>
void sum_offset(const SparseConvWeightArgs& args, const Real* features, const Real* grad,
                int64_t offset, int64_t first_out, int64_t valid, OffsetSums<Real>& sums) {
  const int64_t ins = args.in_channels, channels = args.out_channels;
  const int64_t outs = std::min(kTaskOuts, channels - first_out);
  const int64_t limit = args.table.valid_sources();
  auto& [pairs, part, total] = sums;
  for (int64_t begin = 0; begin < valid; begin += kSparseSegment) {
    pairs.clear();
    for (int64_t row = begin; row < std::min(begin + kSparseSegment, valid); ++row) {
      const int32_t source = args.table.at(offset, row, limit);
      if (source >= 0) pairs.emplace_back(static_cast<int32_t>(row), source);
    }
    for (int64_t out = 0; out < outs; out += kTileRows) {
      const int rows = static_cast<int>(std::min<int64_t>(kTileRows, outs - out));
      const Real* of_rows = grad + first_out + out;
      for (int64_t in = 0; in < ins; in += kWidth<Real>) {
        const int width = static_cast<int>(std::min<int64_t>(kWidth<Real>, ins - in));
        Real* tile = part.data() + out * ins + in;
        if (rows == kTileRows && width == kWidth<Real>) {
          sum_pairs<true>(pairs, of_rows, channels, features + in, ins, rows, width, tile, ins);
        } else {
          sum_pairs<false>(pairs, of_rows, channels, features + in, ins, rows, width, tile, ins);
        }
      }
    }
    for (size_t i = 0; i < static_cast<size_t>(outs * ins); ++i) total[i] += part[i];
  }
  for (int64_t out = 0; out < outs; ++out) {
    T* to =
        static_cast<T*>(args.grad_weight) + ((first_out + out) * args.table.volume + offset) * ins;
    for (int64_t in = 0; in < ins; ++in) {
      to[in] = narrow<T>(quiet(total[static_cast<size_t>(out * ins + in)]));
    }
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
    for_each_index(parallel_for, volume * parts, 1, [&](int64_t task) {
      const int64_t first_out = task % parts * kTaskOuts;
      const auto size = static_cast<size_t>(kTaskOuts * args.in_channels);
      OffsetSums<Real> sums{{}, std::vector<Real>(size), std::vector<Real>(size)};
      sums.pairs.reserve(kSparseSegment);
      run_vectorized(sparse_cpu_plan, [&] {
        sum_offset<T>(args, features, grad, task / parts, first_out, valid, sums);
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
