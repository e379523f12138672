// SPDX-License-Identifier: Apache-2.0
//
// rotated_iou and its gradient on the CPU: tasks of pairs or of rows of the matrix, for which the
// boxes of b are prepared once. Gradients are summed in 32 partial sums and a tree, as by a warp.
#include "csrc/kernels/boxes/rotated_iou.h"

namespace torchvox {
namespace {

constexpr int64_t kPairsPerTask = 1024;
constexpr int64_t kGradientRowsPerTask = 8;

int64_t rows_per_task(int64_t pairs_per_row) {
  return pairs_per_row > 0 && pairs_per_row < kPairsPerTask ? kPairsPerTask / pairs_per_row : 1;
}

// Room for the prepared boxes of b.
template <class T>
Box3<T>* take_boxes(const RotatedIouArgs& args, Workspace& workspace) {
  return workspace.take<Box3<T>>(args.is_paired ? 0 : args.batches * args.b.rows);
}

template <class T>
void measure_matrix(const RotatedIouArgs& args, Box3<T>* boxes, const ParallelFor& parallel_for) {
  const int64_t columns = args.b.rows;
  for_each_index(parallel_for, args.batches * columns, kPairsPerTask, [&](int64_t j) {
    boxes[j] = load_box<T>(args, args.b, j / columns, j % columns);
  });
  const int64_t rows = args.batches * args.a.rows;
  for_each_index(parallel_for, rows, rows_per_task(columns), [&](int64_t i) {
    const int64_t batch = i / args.a.rows;
    const Box3<T> a = load_box<T>(args, args.a, batch, i % args.a.rows);
    const Box3<T>* const b = boxes + batch * columns;
    T* const out = static_cast<T*>(args.iou) + i * columns;
    for (int64_t j = 0; j < columns; ++j) {
      out[j] = pair_overlap(a, b[j], args.is_volume, args.metric);
    }
  });
}

template <class T>
void sum_row(const GradientRow<T>& row) {
  const Box3<T> mine = load_box<T>(row.args.forward, row.own(), row.batch, row.row);
  BoxGradient<T> sums[kPartialSums] = {};
  for (int64_t k = 0; k < row.others().rows; ++k) row.add(mine, k, sums[k % kPartialSums]);
  for (int step = kPartialSums / 2; step > 0; step /= 2) {
    for (int part = 0; part < step; ++part) {
      for (int c = 0; c < kBoxColumns; ++c) sums[part].at[c] += sums[part + step].at[c];
    }
  }
  row.write(sums[0]);
}

template <class T>
void sum_side(const RotatedIouBackwardArgs& args, bool of_a, const ParallelFor& parallel_for) {
  const int64_t rows = of_a ? args.forward.a.rows : args.forward.b.rows;
  for_each_index(parallel_for, args.forward.batches * rows, kGradientRowsPerTask,
                 [&](int64_t i) { sum_row(GradientRow<T>{args, of_a, i / rows, i % rows}); });
}

}  // namespace

int64_t workspace_bytes_cpu(const RotatedIouArgs& args) {
  Workspace workspace;
  with_compute_type(args.dtype, [&](auto type) { take_boxes<decltype(type)>(args, workspace); });
  return workspace.bytes();
}

void run_cpu(const RotatedIouArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  with_compute_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.is_paired) {
      for_each_index(parallel_for, args.batches * args.a.rows, kPairsPerTask,
                     [&](int64_t i) { pair_element<T>(args, i); });
    } else {
      measure_matrix<T>(args, take_boxes<T>(args, workspace), parallel_for);
    }
  });
}

void run_cpu(const RotatedIouBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  const RotatedIouArgs& forward = args.forward;
  with_compute_type(forward.dtype, [&](auto type) {
    using T = decltype(type);
    if (forward.is_paired) {
      return for_each_index(parallel_for, forward.batches * forward.a.rows, kPairsPerTask,
                            [&](int64_t i) { pair_gradient_element<T>(args, i); });
    }
    if (args.grad_a) sum_side<T>(args, true, parallel_for);
    if (args.grad_b) sum_side<T>(args, false, parallel_for);
  });
}

}  // namespace torchvox
