// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/boxes/rotated_iou.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

inline void check_few_rows(const char* op, const Tensor& boxes) {
  check_below(boxes.sym_size(-2), kIndexLimit, op, "rows must be fewer than 2^31",
              boxes.sym_sizes());
}

// [.., rows, columns] of unit column stride, one leading dimension or none.
inline BoxArray box_array(const Tensor& rows) {
  return {rows.const_data_ptr(), rows.size(-2), rows.stride(-2),
          rows.dim() == 3 ? rows.stride(0) : 0};
}

}  // namespace torchvox
