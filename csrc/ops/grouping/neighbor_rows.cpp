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
  const bool flat = batch_offsets || idx_in.dim() == 2;
  Inputs in(op);
  in.add("idx", idx_in, Dtypes::kIndices, batch_offsets ? "[U, k]" : "[U, k] or [B, M, k]");
  in.add("count", count, Dtypes::kIndices, flat ? "[U]" : "[B, M]");
  check_count(op, "num_points", num_points);
  check_value(clouds.packed() || !local_index, op,
              "local_index must come with batch_offsets and query_batch_offsets", "neither");
  if (clouds.packed()) add_offsets(in, clouds);
  if (idx_in.is_meta()) return empty_beside(idx_in.sym_sizes(), at::kInt, idx_in);
  return flat_neighbor_rows(op, idx_in.contiguous(), num_points.guard_int(__FILE__, __LINE__),
                            count, clouds);
}

TORCHVOX_REGISTER_OPS(ops) { ops.add("neighbor_rows", neighbor_rows, not_differentiable()); }

}  // namespace
}  // namespace torchvox
