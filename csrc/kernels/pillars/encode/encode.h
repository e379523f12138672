// SPDX-License-Identifier: Apache-2.0
//
// Entry of pillar_encode and its gradient, and the arithmetic of one channel of one pillar. A
// decorated point f is (p, i, p - mean, p - c): coordinates p, further features i, the mean of the
// pillar's points, and the pillar's center c. With u = p - c and the weight split into its columns
// W_p | W_i | W_m | W_c in this order,
//   W f + bias = A [u; i] + k,   A = [W_p + W_m + W_c | W_i],   k = bias + W_p c + W_m (c - mean):
// the maximum over the points needs A alone, and k is added once. Legacy columns drop W_p c.
//
// On the GPU ../scatter.cu lists the points of each pillar and the row of each cell before
// encode.cu.
#pragma once

#include <type_traits>

#include "csrc/kernels/pillars/moments.h"

namespace torchvox {

// Stands for the winning point of a pillar's channel where no point won: an empty slot did, or
// nobody whose gradient counts (the ReLU gave 0, or the row is unused).
inline constexpr int32_t kPaddingWon = -1;
inline constexpr int32_t kNobodyWon = -2;

// canvas[b, y, x] = max over the pillar's points of relu(weight f + bias), f the decorated point;
// 0 where no pillar is.
struct PillarEncodeArgs {
  PillarMap map;
  const void* weight = nullptr;  // [outputs, map.decorated()]
  const void* bias = nullptr;  // [outputs]
  DType weight_dtype = DType::kFloat;
  int64_t outputs = 0;
  DType out_dtype = DType::kFloat;

  void* canvas = nullptr;  // [batches, ny, nx, outputs]
  int32_t* arg = nullptr;  // [rows, outputs]: the winning point; null without a gradient
  void* mean = nullptr;  // [rows, 3] meters, float, double for wide(); null without a gradient

  // Whether it is computed in double.
  bool wide() const { return map.dtype == DType::kDouble || weight_dtype == DType::kDouble; }
};

// The gradients of weight and bias from that of the canvas.
struct PillarEncodeBackwardArgs {
  PillarMap map;  // without point_voxel, point_slot and num_points
  const void* grad = nullptr;  // [batches, outputs, ny, nx], any strides
  DType grad_dtype = DType::kFloat;
  int64_t grad_strides[4] = {0, 0, 0, 0};  // in elements
  const int32_t* arg = nullptr;  // [rows, outputs]
  const void* mean = nullptr;  // [rows, 3] float, double for wide
  bool wide = false;
  int64_t outputs = 0;
  DType weight_dtype = DType::kFloat;

  void* grad_weight = nullptr;  // [outputs, map.decorated()]
  void* grad_bias = nullptr;  // [outputs]
};

TORCHVOX_KERNEL(PillarEncodeArgs);
TORCHVOX_KERNEL(PillarEncodeBackwardArgs);

// Calls body(T{}, Real{}, columns) with the types of the calculation and the columns of a point
// that loops are unrolled for; 0: any number.
template <class Body>
auto with_pillar_columns(const PillarMap& map, bool wide, const Body& body) {
  return with_pillar_types(map.dtype, wide, [&](auto type, auto real) {
    if constexpr (std::is_same_v<decltype(type), float> && std::is_same_v<decltype(real), float>) {
      switch (pillar_common_plan.value() != 0 ? map.columns : 0) {
        case 4: return body(type, real, std::integral_constant<int, 4>{});
        case 5: return body(type, real, std::integral_constant<int, 5>{});
        case 6: return body(type, real, std::integral_constant<int, 6>{});
        case 7: return body(type, real, std::integral_constant<int, 7>{});
        default: break;
      }
    }
    return body(type, real, std::integral_constant<int, 0>{});
  });
}

// The weights of one channel but those of the features i.
template <class Real>
struct PillarChannel {
  Real a[3];  // the columns of A that u is multiplied by
  Real p[3], m[3], bias;  // W_p (0 where legacy columns drop it) and W_m

  TORCHVOX_HD void load(const PillarEncodeArgs& args, int64_t channel) {
    const PillarMap& map = args.map;
    const auto weight = [&](int64_t column) {
      return load_as<Real>(args.weight, args.weight_dtype, channel * map.decorated() + column);
    };
    bias = load_as<Real>(args.bias, args.weight_dtype, channel);
    for (int axis = 0; axis < 3; ++axis) {
      p[axis] = weight(axis);
      m[axis] = weight(map.columns + axis);
      a[axis] = p[axis] + m[axis];
      if (axis < map.center_axes) a[axis] = a[axis] + weight(map.columns + 3 + axis);
      if (map.legacy && axis < map.center_axes) p[axis] = Real(0);
    }
  }
};

template <class Real>
TORCHVOX_HD Real feature_weight(const PillarEncodeArgs& args, int64_t channel, int64_t column) {
  return load_as<Real>(args.weight, args.weight_dtype, channel * args.map.decorated() + column);
}

// A u; the caller adds the features in their order, each by an fma.
template <class Real>
TORCHVOX_HD Real of_offset(const Real* a, const Real* u) {
  return fma_rn(a[2], u[2], fma_rn(a[1], u[1], a[0] * u[0]));
}

// A maximum as torch.amax: the first NaN beats all, else the first of the largest.
template <class Real>
TORCHVOX_HD bool beats(Real value, Real best) {
  return !(value <= best) & (best == best);
}

// k above. Products with the zeros of legacy columns change nothing: c is finite.
template <class Real>
TORCHVOX_HD Real frame_term(const PillarFrame<Real>& frame, const Real* p, const Real* m,
                            Real bias) {
  Real k = bias;
  for (int axis = 0; axis < 3; ++axis) {
    k = fma_rn(p[axis], frame.center[axis], k);
    k = fma_rn(m[axis], frame.center[axis] - frame.mean[axis], k);
  }
  return k;
}

// The value for the canvas and the slot that won, or kPaddingWon or kNobodyWon.
template <class Real>
struct PillarOutput {
  Real value;
  int32_t arg;
};

// best: the largest A [u; i] of the pillar's n points, that of slot `winner`; k: frame_term().
template <class Real>
TORCHVOX_HD PillarOutput<Real> finish_channel(Real best, int32_t winner, Real k, Real bias,
                                              int64_t n, bool has_padding) {
  Real value = n > 0 ? best + k : Real(0);
  if (n == 0) winner = kNobodyWon;
  if (has_padding && (n == 0 || bias > value)) {
    value = bias;
    winner = kPaddingWon;
  }
  if (value <= Real(0)) return {Real(0), kNobodyWon};
  return {quiet(value), winner};
}

// The gradient of weight and bias is the sum over the rows of the gradient d of each channel times
// the decorated point that won it. This is one row's share for one channel, in the steps in which
// its memory is read, so that several rows may be read at once. kColumns: the columns of a point;
// 0: any number.
template <class T, class Real, int kColumns>
struct RowGradient {
  int64_t winner;  // below kPaddingWon: the row has no share
  int64_t cell;
  Real d;  // gradient of the canvas at the cell and channel
  PillarFrame<Real> frame;
  Real point[kColumns > 0 ? kColumns : 1];

  TORCHVOX_HD void find(const PillarEncodeBackwardArgs& args, int64_t row, int64_t end,
                        int64_t channel) {
    winner = row < end ? args.arg[row * args.outputs + channel] : kNobodyWon;
    cell = row < end ? args.map.rows.cell(row) : -1;
    if (winner >= args.map.count || cell < 0) winner = kNobodyWon;
  }
  TORCHVOX_HD void read(const PillarEncodeBackwardArgs& args, int64_t row, int64_t channel) {
    if (winner < kPaddingWon) return;
    d = load_as<Real>(args.grad, args.grad_dtype,
                      args.map.rows.strided(cell, channel, args.grad_strides));
    if (winner < 0) return;
    frame.place(args.map, row);
    for (int axis = 0; axis < 3; ++axis) {
      frame.mean[axis] = static_cast<const Real*>(args.mean)[3 * row + axis];
    }
    for (int c = 0; c < kColumns; ++c) point[c] = args.map.value<T, Real>(winner, c);
  }
  // kColumns > 0: sum[c] is of column c of the weight, the last sum of the bias. kColumns = 0:
  // sum[0] is of `pass`.
  TORCHVOX_HD void add(const PillarEncodeBackwardArgs& args, [[maybe_unused]] int64_t pass,
                       double* sum) const {
    if (winner < kPaddingWon) return;
    const int64_t columns = args.map.decorated();
    if constexpr (kColumns > 0) {
      const auto values = [&](int64_t c) { return point[c]; };
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
      for (int c = 0; c < kColumns + 6; ++c) {
        if (c < columns && winner >= 0) {
          sum[c] = plus_product(sum[c], d, decorated(args.map, kColumns, frame, values, c));
        }
      }
      sum[kColumns + 6] += static_cast<double>(d);
    } else if (pass == columns) {
      sum[0] += static_cast<double>(d);
    } else if (winner >= 0) {
      sum[0] = plus_product(sum[0], d, decorated<T>(args.map, frame, winner, pass));
    }
  }
};

// Value i = channel * (columns + 1) + column, the bias after the columns.
TORCHVOX_HD void store_gradient(const PillarEncodeBackwardArgs& args, int64_t i, double value) {
  const int64_t columns = args.map.decorated(), width = columns + 1;
  const int64_t channel = i / width, column = i % width;
  if (column == columns) {
    store_as(args.grad_bias, args.weight_dtype, channel, quiet(value));
  } else {
    store_as(args.grad_weight, args.weight_dtype, channel * columns + column, quiet(value));
  }
}

}  // namespace torchvox
