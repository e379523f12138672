// SPDX-License-Identifier: Apache-2.0
//
// Checks that the ball query and what is fused with it share.
#pragma once

#include <string_view>

#include "csrc/kernels/spatial/distance.h"
#include "csrc/ops/core/checks.h"

namespace torchvox {

// True for `second`, false for `first`; anything else is refused.
inline bool parse_word(const char* op, const char* name, std::string_view value, const char* first,
                       const char* second) {
  check_value(value == first || value == second, op,
              {name, " must be '", first, "' or '", second, "'"}, "'", value, "'");
  return value == second;
}

inline void check_rows(const char* op, const char* name, const at::Tensor& rows, int dims,
                       const char* layout) {
  const Rule rule{name, " must be ", layout, " with D >= 1"};
  check_value(rows.dim() == dims, op, rule, rows.sym_sizes());
  check_size(rows.sym_size(-1).sym_ge(1), op, rule, rows.sym_sizes());
  check_type(is_coordinate_type(rows.scalar_type()), op,
             {name, " must be float16, bfloat16, float32 or float64"}, rows.scalar_type());
}

inline void check_points_and_query(const char* op, const at::Tensor& points,
                                   const at::Tensor& query, int dims, const char* points_layout,
                                   const char* query_layout) {
  check_rows(op, "points", points, dims, points_layout);
  check_rows(op, "query", query, dims, query_layout);
  check_type(query.scalar_type() == points.scalar_type(), op, "query must have the dtype of points",
             query.scalar_type());
  check_device(op, "query", query, points);
  check_size(query.sym_size(-1).sym_eq(points.sym_size(-1)), op, "query must have the D of points",
             query.sym_sizes());
  check_below(points.sym_size(-2), kIndexLimit, op, "points must be fewer than 2^31 a cloud",
              points.sym_sizes());
}

inline void check_vector(const char* op, const char* name, const std::optional<at::Tensor>& tensor,
                         const at::Tensor& points, const c10::SymInt& length, const char* shape) {
  if (!tensor) return;
  check_integers(op, name, *tensor);
  check_device(op, name, *tensor, points);
  const Rule rule{name, " must be ", shape};
  check_value(tensor->dim() == 1, op, rule, tensor->sym_sizes());
  check_size(tensor->sym_size(0).sym_eq(length), op, rule, tensor->sym_sizes());
}

inline DistOrder parse_dist_order(const char* op, std::string_view order) {
  return parse_word(op, "dist_order", order, "pn2", "loop") ? DistOrder::kLoop : DistOrder::kPn2;
}

}  // namespace torchvox
