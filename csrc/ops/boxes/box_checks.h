// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/boxes/rotated_iou.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

// Coordinates of 16 bits would be off by centimeters: they are refused, not widened.
inline void check_wide_floats(const char* op, const char* name, const Tensor& tensor) {
  check_given(op, name, tensor);
  check_type(tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble, op,
             {name, " must be float32 or float64"}, tensor.scalar_type());
}

inline void check_columns(const char* op, const Tensor& tensor, int64_t columns, int64_t rank,
                          const Rule& rule) {
  check_value(tensor.dim() == rank, op, rule, tensor.sym_sizes());
  check_size(tensor.sym_size(-1).sym_ge(columns), op, rule, tensor.sym_sizes());
  check_below(tensor.sym_size(-2), kIndexLimit, op, "rows must be fewer than 2^31",
              tensor.sym_sizes());
}

// [.., rows, columns] of unit column stride, one leading dimension or none.
inline BoxArray box_array(const Tensor& rows) {
  return {rows.const_data_ptr(), rows.size(-2), rows.stride(-2),
          rows.dim() == 3 ? rows.stride(0) : 0};
}

}  // namespace torchvox
