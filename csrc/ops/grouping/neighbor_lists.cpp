// SPDX-License-Identifier: Apache-2.0
//
// neighbor_rows, which makes any neighbor list one of flat rows; and the one gradient of the
// distances of knn, three_nn and ball_query, to both point sets: it follows from the indices, and
// the counts of balls, alone.
#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

void add_offsets_of_indices(Inputs& in, const CloudLayout& clouds) {
  check_value(clouds.packed() || !clouds.local_index, in.op(),
              "local_index must come with batch_offsets and query_batch_offsets", "neither");
  if (clouds.packed()) add_offsets(in, clouds);
}

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
  add_offsets_of_indices(in, clouds);
  if (idx_in.is_meta()) return empty_beside(idx_in.sym_sizes(), at::kInt, idx_in);
  return flat_neighbor_rows(op, idx_in.contiguous(), num_points.guard_int(__FILE__, __LINE__),
                            count, clouds);
}

void check(const char* op, const Tensor& grad, const Tensor& points, const Tensor& query,
           const Tensor& idx, int64_t norm, const OptionalTensor& count,
           const CloudLayout& clouds) {
  const bool batched = points.dim() == 3;
  Inputs in(op);
  check_value(batched || points.dim() == 2, op, "points must be [B, N, D] or [T, D] with D >= 1",
              points.sym_sizes());
  in.add("points", points, Dtypes::kFloats, batched ? "[B, N, D >= 1]" : "[T, D >= 1]");
  in.add("query", query, Dtypes::kFloats, batched ? "[B, M, D]" : "[U, D]");
  check_dtype(op, "query", query.scalar_type(), "points", points.scalar_type());
  in.add("idx", idx, Dtypes::kIndices, batched ? "[B, M, k]" : "[U, k]");
  check_type(grad.scalar_type() == (points.scalar_type() == at::kDouble ? at::kDouble : at::kFloat),
             op, "grad_dist2 must be float32, or float64 for float64 points", grad.scalar_type());
  in.add("grad_dist2", grad, Dtypes::kWideFloats, batched ? "[B, M, k]" : "[U, k]");
  in.add("count", count, Dtypes::kIndices, batched ? "[B, M]" : "[U]");
  check_value(norm == 1 || norm == 2, op, "norm must be 1 or 2", norm);
  check_value(!(batched && clouds.packed()), op, "points must be [T, D] with batch_offsets",
              points.sym_sizes());
  add_offsets_of_indices(in, clouds);
}

std::tuple<Tensor, Tensor> neighbor_distance_backward(
    const Tensor& grad, const Tensor& points, const Tensor& query, const Tensor& idx_in,
    int64_t norm, const OptionalTensor& count, const OptionalTensor& batch_offsets,
    const OptionalTensor& query_batch_offsets, bool local_index, bool for_points, bool for_query) {
  const char* op = "_neighbor_distance_backward";
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
  check(op, grad, points, query, idx_in, norm, count, clouds);
  if (for_points)
    check_gradient_limit(op, points.sym_size(-2), idx_in.sym_size(-2) * idx_in.sym_size(-1));
  NeighborDistanceArgs args;
  const Tensor grad_points = output_gradient(args.grad_points, points, for_points);
  const Tensor grad_query = output_gradient(args.grad_query, query, for_query);
  if (points.is_meta()) return {grad_points, grad_query};

  Memory memory;
  args.grad = memory.of(grad);
  args.points = memory.of(points);
  args.query = memory.of(query);
  args.dtype = dtype_of(points.scalar_type());
  args.norm = static_cast<int>(norm);
  args.inverse.clouds = points.dim() == 3 ? points.size(0) : 1;
  args.inverse.rows = points.size(-2);
  args.queries = query.size(-2);
  args.k = idx_in.size(-1);
  args.dims = points.size(-1);
  Tensor idx = idx_in.contiguous();
  if (count || batch_offsets) idx = flat_neighbor_rows(op, idx, args.inverse.rows, count, clouds);
  args.idx = index_array(idx);
  OwnedInverseIndex owned;
  if (for_points) {
    owned = build_inverse_index(op, idx, args.inverse.clouds, args.inverse.rows);
    args.inverse = owned.inverse;
  }
  run(op, points, args);
  return {grad_points, grad_query};
}

void check_distance_gradient(const Call& call) {
  const c10::SymInt k = call.has("k") ? call["k"].toSymInt() : c10::SymInt(3);
  check_gradient_limit_of(call.op(), call.tensor("points"), -2, call.tensor("query"), -2, k);
}

// The gradient takes offsets where indices are local to their cloud.
bool has_local_indices(const Call& call) {
  return call["local_index"].toBool() && CallLayout(call).clouds.packed();
}

auto offsets_of_local_indices(const char* name) {
  return [name](const Call& call) { return has_local_indices(call) ? call[name] : c10::IValue(); };
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("neighbor_rows", neighbor_rows, not_differentiable());
  ops.add("_neighbor_distance_backward", neighbor_distance_backward, no_second_derivative());
  for (const char* op : {"ball_query", "knn", "three_nn"}) {
    ops.differentiable(
        op,
        {.backward = "_neighbor_distance_backward",
         .derived = {{"batch_offsets", offsets_of_local_indices("batch_offsets")},
                     {"query_batch_offsets", offsets_of_local_indices("query_batch_offsets")},
                     {"local_index", has_local_indices}},
         .prepare = check_distance_gradient});
  }
}

}  // namespace
}  // namespace torchvox
