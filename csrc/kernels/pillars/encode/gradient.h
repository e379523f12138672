// SPDX-License-Identifier: Apache-2.0
//
// Gradients of weight and bias: sums over the rows of the gradient of each channel times the
// decorated point that won it.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/pillars/encode/channel.h"
#include "csrc/kernels/pillars/moments.h"

namespace torchvox {

template <class Real>
TORCHVOX_HD Real canvas_gradient(const PillarEncodeBackwardArgs& args, int64_t cell,
                                 int64_t channel) {
  const int64_t plane = args.map.rows.nx * args.map.rows.ny;
  const int64_t b = cell / plane, y = cell % plane / args.map.rows.nx;
  const int64_t x = cell % args.map.rows.nx;
  const int64_t at = b * args.grad_strides[0] + channel * args.grad_strides[1] +
      y * args.grad_strides[2] + x * args.grad_strides[3];
  return load_real<Real>(args.grad, args.grad_dtype, at);
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
    store_real(args.grad_bias, args.weight_dtype, channel, quiet(value));
  } else {
    store_real(args.grad_weight, args.weight_dtype, channel * columns + column, quiet(value));
  }
}

}  // namespace torchvox
