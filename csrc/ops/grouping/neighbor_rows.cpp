// SPDX-License-Identifier: Apache-2.0
//
// neighbor_rows makes any neighbor list one of flat rows; the ragged gathers are it and the
// batched op on one cloud, so that their gradients are the batched ones.
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor neighbor_rows(const Tensor& idx_in, const c10::SymInt& num_points,
                     const OptionalTensor& count, const OptionalTensor& batch_offsets,
                     const OptionalTensor& query_batch_offsets, bool local_index) {
  const char* op = "neighbor_rows";
  const RaggedClouds clouds{batch_offsets, query_batch_offsets, local_index};
  check_integers(op, "idx", idx_in);
  check_value(idx_in.dim() == 2 || (idx_in.dim() == 3 && !batch_offsets), op,
              "idx must be [B, M, k], or [U, k] as it must be with batch_offsets",
              idx_in.sym_sizes());
  check_size(num_points.sym_ge(0), op, "num_points must not be negative", num_points);
  check_below(num_points, kIndexLimit, op, "num_points must be below 2^31", num_points);
  if (count) {
    const char* rule = "count must be one number a query, the shape of idx less its last axis";
    check_integers(op, "count", *count);
    check_device(op, "count", *count, "idx", idx_in);
    check_value(count->dim() == idx_in.dim() - 1, op, rule, count->sym_sizes());
    for (int axis = 0; axis < count->dim(); ++axis) {
      check_size(count->sym_size(axis).sym_eq(idx_in.sym_size(axis)), op, rule, count->sym_sizes());
    }
  }
  check_offsets(op, clouds, "idx", idx_in);
  if (idx_in.is_meta()) return empty_beside(idx_in.sym_sizes(), at::kInt, idx_in);
  return flat_neighbor_rows(op, idx_in.contiguous(), num_points.guard_int(__FILE__, __LINE__),
                            count, clouds);
}

Tensor neighbor_rows_int(const Tensor& idx, int64_t num_points, const OptionalTensor& count,
                         const OptionalTensor& batch_offsets,
                         const OptionalTensor& query_batch_offsets, bool local_index) {
  return neighbor_rows(idx, num_points, count, batch_offsets, query_batch_offsets, local_index);
}
Tensor neighbor_rows_meta(const Tensor& idx, c10::SymInt num_points, const OptionalTensor& count,
                          const OptionalTensor& batch_offsets,
                          const OptionalTensor& query_batch_offsets, bool local_index) {
  return neighbor_rows(idx, num_points, count, batch_offsets, query_batch_offsets, local_index);
}

// Rows [1, U, k] of packed features [T, C], for a batched op.
Tensor ragged_rows(const char* op, const Tensor& features, const Tensor& idx,
                   const Tensor& batch_offsets, const Tensor& query_batch_offsets,
                   bool local_index) {
  static const auto rows_op =
      typed_op<Tensor(const Tensor&, c10::SymInt, const OptionalTensor&, const OptionalTensor&,
                      const OptionalTensor&, bool)>("torchvox::neighbor_rows");
  check_dense(op, "features", features);
  check_dense(op, "idx", idx);
  check_dense(op, "batch_offsets", batch_offsets);
  check_dense(op, "query_batch_offsets", query_batch_offsets);
  check_value(features.dim() == 2, op, "features must be [T, C]", features.sym_sizes());
  check_type(is_coordinate_type(features.scalar_type()), op,
             "features must be float16, bfloat16, float32 or float64", features.scalar_type());
  check_integers(op, "idx", idx);
  check_value(idx.dim() == 2, op, "idx must be [U, k]", idx.sym_sizes());
  check_device(op, "idx", idx, "features", features);
  const OptionalTensor given_ptr = batch_offsets, given_query_ptr = query_batch_offsets;
  check_offsets(op, {given_ptr, given_query_ptr, local_index}, "features", features);
  return rows_op
      .call(idx, features.sym_size(0), std::nullopt, given_ptr, given_query_ptr, local_index)
      .unsqueeze(0);
}

Tensor group_points_ragged(const Tensor& features, const Tensor& idx, const Tensor& batch_offsets,
                           const Tensor& query_batch_offsets, bool local_index) {
  static const auto group_op =
      typed_op<Tensor(const Tensor&, const Tensor&, bool)>("torchvox::group_points");
  const Tensor rows = ragged_rows("group_points_ragged", features, idx, batch_offsets,
                                  query_batch_offsets, local_index);
  return group_op.call(features.unsqueeze(0), rows, false).squeeze(0);
}

Tensor three_interpolate_ragged(const Tensor& features, const Tensor& idx, const Tensor& weight,
                                const Tensor& batch_offsets, const Tensor& query_batch_offsets,
                                bool local_index) {
  static const auto interpolate_op =
      typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>(
          "torchvox::three_interpolate");
  const char* op = "three_interpolate_ragged";
  const Tensor rows =
      ragged_rows(op, features, idx, batch_offsets, query_batch_offsets, local_index);
  check_size(idx.sym_size(1).sym_eq(3), op, "idx must be [U, 3]", idx.sym_sizes());
  check_dense(op, "weight", weight);
  check_value(weight.dim() == 2, op, "weight must be [U, 3], as idx", weight.sym_sizes());
  check_type(weight.scalar_type() == at::kFloat || weight.scalar_type() == features.scalar_type(),
             op, "weight must be float32 or of the dtype of features", weight.scalar_type());
  check_device(op, "weight", weight, "features", features);
  for (int axis = 0; axis < 2; ++axis) {
    check_size(weight.sym_size(axis).sym_eq(idx.sym_size(axis)), op,
               "weight must be [U, 3], as idx", weight.sym_sizes());
  }
  return interpolate_op.call(features.unsqueeze(0), rows, weight.unsqueeze(0), false).squeeze(0);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("neighbor_rows", neighbor_rows_int, neighbor_rows_meta);
  ops.autograd("neighbor_rows", not_differentiable());
  ops.composite("group_points_ragged", group_points_ragged);
  ops.composite("three_interpolate_ragged", three_interpolate_ragged);
}

}  // namespace
}  // namespace torchvox
