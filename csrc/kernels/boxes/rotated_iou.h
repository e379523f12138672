// SPDX-License-Identifier: Apache-2.0
//
// Entry of rotated_iou and its gradient.
#pragma once

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"

namespace torchvox {

// Boxes [batches, rows, 7 or more] of unit column stride, strides in elements.
struct BoxArray {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t row_stride = 0, batch_stride = 0;

  template <class T>
  TORCHVOX_HD const T* row(int64_t batch, int64_t i) const {
    return static_cast<const T*>(data) + batch * batch_stride + i * row_stride;
  }
};

// Intersection over union of every a with every b of its batch, or of pairs.
struct RotatedIouArgs {
  BoxArray a, b;
  DType dtype = DType::kFloat;  // kFloat or kDouble, of all
  int64_t batches = 0;
  bool is_paired = false;  // a and b have as many rows
  bool is_volume = false;  // in space; else seen from above
  void* iou = nullptr;  // [batches, a rows, b rows], or [batches, rows]
};

// The gradient by the boxes, columns past the seventh zero. A box of a matrix sums over its row or
// column: 32 partial sums, of every 32nd pair each, and a tree over them.
struct RotatedIouBackwardArgs {
  RotatedIouArgs forward;
  const void* grad = nullptr;  // as iou
  int64_t a_columns = 0, b_columns = 0;
  void* grad_a = nullptr;  // [batches, a rows, a_columns]; null where not wanted
  void* grad_b = nullptr;
};

TORCHVOX_KERNEL(RotatedIouArgs);
TORCHVOX_KERNEL_WITHOUT_WORKSPACE(RotatedIouBackwardArgs);

}  // namespace torchvox
