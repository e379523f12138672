// SPDX-License-Identifier: Apache-2.0
//
// Entry of pillar_encode and its gradient, and the arithmetic of one channel of one pillar. With
// u = p - center and the weight split into its columns W_p | W_i | W_m | W_c (point, other
// features, offset to the mean, to the center),
//   W f + bias = A [u; i] + k,   A = [W_p + W_m + W_c | W_i],   k = bias + W_p c + W_m (c - mean):
// the maximum over the points needs A alone, and k once. Legacy columns drop W_p c.
//
// On the GPU ../prepare.cu lists the points of each pillar and the row of each cell before
// encode.cu.
#pragma once

#include "csrc/kernels/pillars/moments.h"

namespace torchvox {

// Who is the maximum of a pillar's channel, where it is not one of its points: an empty slot, or
// nobody whose gradient counts (the ReLU cut it, or the row is unused).
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
  int32_t* arg = nullptr;  // [rows, outputs]: the winning point; null: not wanted
  void* mean = nullptr;  // [rows, 3] float, double for wide(); null: not wanted

  // Whether it is computed in double.
  bool wide() const { return map.dtype == DType::kDouble || weight_dtype == DType::kDouble; }
};

// From the gradient of the canvas those of weight and bias.
struct PillarEncodeBackwardArgs {
  PillarMap map;  // without num_points and the rows of points
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

// The weights that are not of single features.
template <class Real>
struct PillarChannel {
  Real a[3];  // of u
  Real p[3], m[3], bias;

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

// A u, to which the features are added in their order by fma.
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

// What the canvas gets, and who won.
template <class Real>
struct PillarOutput {
  Real value;
  int32_t arg;
};

// best: the largest A [u; i] of the pillar's n points, of point `winner`; k the frame's term.
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

// Gradients of weight and bias: sums over the rows of the gradient of each channel times the
// decorated point that won it.

template <class Real>
TORCHVOX_HD Real canvas_gradient(const PillarEncodeBackwardArgs& args, int64_t cell,
                                 int64_t channel) {
  const int64_t plane = args.map.rows.nx * args.map.rows.ny;
  const int64_t b = cell / plane, y = cell % plane / args.map.rows.nx;
  const int64_t x = cell % args.map.rows.nx;
  const int64_t at = b * args.grad_strides[0] + channel * args.grad_strides[1] +
      y * args.grad_strides[2] + x * args.grad_strides[3];
  return load_as<Real>(args.grad, args.grad_dtype, at);
}

// A row's share of the gradient of one channel, in the steps in which its memory is read, so that
// several rows may be read at once. kColumns: the columns of a point; 0: any number.
template <class T, class Real, int kColumns>
struct RowGradient {
  int64_t winner;  // below kPaddingWon: the row has no share
  int64_t cell;
  Real d;
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
    d = canvas_gradient<Real>(args, cell, channel);
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
