// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/boxes/box_pair.h"
#include "csrc/kernels/boxes/rotated_iou.h"

namespace torchvox {

inline constexpr int kPartialSums = 32;

// Calls body(T{}) with the type of the boxes.
template <class Body>
void with_box_type(DType dtype, Body&& body) {
  if (dtype == DType::kDouble) {
    body(double{});
  } else {
    body(float{});
  }
}

template <class T>
TORCHVOX_HD Box3<T> load_box(const RotatedIouArgs& args, const BoxArray& boxes, int64_t batch,
                             int64_t i) {
  return load_box(boxes.row<T>(batch, i), args.is_volume);
}

// One box of a matrix call, whose gradient is a sum over the boxes of the other side.
template <class T>
struct GradientRow {
  const RotatedIouBackwardArgs& args;
  bool of_a;
  int64_t batch, row;

  TORCHVOX_HD const BoxArray& own() const { return of_a ? args.forward.a : args.forward.b; }
  TORCHVOX_HD const BoxArray& others() const { return of_a ? args.forward.b : args.forward.a; }

  // Adds the pair with the other side's box k to a partial sum.
  TORCHVOX_HD void add(const Box3<T>& mine, int64_t k, BoxGradient<T>& sum) const {
    const RotatedIouArgs& f = args.forward;
    const int64_t i = of_a ? row : k, j = of_a ? k : row;
    const T grad = static_cast<const T*>(args.grad)[(batch * f.a.rows + i) * f.b.rows + j];
    const Box3<T> other = load_box<T>(f, others(), batch, k);
    BoxGradient<T> by_mine, by_other;
    if (!pair_iou_gradient(mine, other, f.is_volume, grad, by_mine, by_other)) return;
    for (int c = 0; c < kBoxColumns; ++c) sum.at[c] += by_mine.at[c];
  }
  TORCHVOX_HD void write(const BoxGradient<T>& sum) const {
    const int64_t columns = of_a ? args.a_columns : args.b_columns;
    T* const out =
        static_cast<T*>(of_a ? args.grad_a : args.grad_b) + (batch * own().rows + row) * columns;
    for (int64_t c = 0; c < columns; ++c) out[c] = c < kBoxColumns ? sum.at[c] : T(0);
  }
};

// The gradient of one pair of a paired call.
template <class T>
TORCHVOX_HD void write_pair_gradient(const RotatedIouBackwardArgs& args, int64_t batch,
                                     int64_t row) {
  const RotatedIouArgs& f = args.forward;
  BoxGradient<T> by_a{}, by_b{};
  const T grad = static_cast<const T*>(args.grad)[batch * f.a.rows + row];
  const Box3<T> a = load_box<T>(f, f.a, batch, row), b = load_box<T>(f, f.b, batch, row);
  pair_iou_gradient(a, b, f.is_volume, grad, by_a, by_b);
  if (args.grad_a) GradientRow<T>{args, true, batch, row}.write(by_a);
  if (args.grad_b) GradientRow<T>{args, false, batch, row}.write(by_b);
}

}  // namespace torchvox
