// SPDX-License-Identifier: Apache-2.0
//
// neighbor_rows makes any neighbor list one of flat rows; gathers from packed clouds are it and the
// gather from one padded cloud.
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

Tensor neighbor_rows(const Tensor& idx_in, c10::SymInt num_points, const OptionalTensor& count,
                     const OptionalTensor& batch_offsets, const OptionalTensor& query_batch_offsets,
                     bool local_index) {
  const char* op = "neighbor_rows";
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
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
  check_value(clouds.packed() || !local_index, op,
              "local_index must come with batch_offsets and query_batch_offsets", "neither");
  if (clouds.packed()) check_packed(op, clouds, "idx", idx_in);
  if (idx_in.is_meta()) return empty_beside(idx_in.sym_sizes(), at::kInt, idx_in);
  return flat_neighbor_rows(op, idx_in.contiguous(), num_points.guard_int(__FILE__, __LINE__),
                            count, clouds);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("neighbor_rows", neighbor_rows);
  ops.autograd("neighbor_rows", not_differentiable());
}

}  // namespace
}  // namespace torchvox
