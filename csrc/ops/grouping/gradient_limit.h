// SPDX-License-Identifier: Apache-2.0
//
// What gradients that walk an inverse index can take. Checked before the forward of a call that
// wants such a gradient, and again by its backward.
#pragma once

#include "csrc/ops/core/op.h"

namespace torchvox {

inline void check_gradient_limit(const char* op, const c10::SymInt& rows,
                                 const c10::SymInt& slots) {
  check_below(rows, kIndexLimit, op, "a gradient takes fewer than 2^31 points per cloud", rows);
  check_below(slots, kIndexLimit, op,
              "a gradient takes fewer than 2^31 slots a cloud, queries times neighbors", slots);
}

// Of `rows`, whose `axis` counts the points and which may require a gradient or not. The call
// itself refuses shapes that do not fit.
inline void check_gradient_limit_of(const char* op, const Tensor& rows, int axis,
                                    const Tensor& query, int query_axis, const c10::SymInt& k) {
  if (!wants_gradient(rows)) return;
  const int64_t dims = rows.dim(), query_dims = query.dim();
  const bool fits =
      axis < dims && -axis <= dims && query_axis < query_dims && -query_axis <= query_dims;
  if (fits) check_gradient_limit(op, rows.sym_size(axis), query.sym_size(query_axis) * k);
}

// The packed clouds of a call, or none.
struct CallLayout {
  OptionalTensor batch_offsets, query_batch_offsets;
  CloudLayout clouds;

  explicit CallLayout(const Call& call)
      : batch_offsets(call.optional("batch_offsets")),
        query_batch_offsets(call.optional("query_batch_offsets")),
        clouds{batch_offsets, query_batch_offsets, call["local_index"].toBool()} {}
};

// Of features with k slots for each row of idx.
inline void check_gradient_of_features(const Call& call, bool packed, const c10::SymInt& k) {
  const int axis = packed ? 0 : call["channels_first"].toBool() ? 2 : 1;
  check_gradient_limit_of(call.op(), call.tensor("features"), axis, call.tensor("idx"), !packed, k);
}

}  // namespace torchvox
