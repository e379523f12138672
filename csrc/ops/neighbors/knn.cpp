// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbors/knn/knn.h"

#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

using Neighbors = std::tuple<Tensor, Tensor>;

Neighbors search(const char* op, const Tensor& points_in, const Tensor& query_in,
                 const c10::SymInt& k, int64_t norm, std::string_view dist_order,
                 const CloudLayout& layout) {
  Inputs in(op);
  add_padded_or_packed(in, points_in, query_in, layout);
  check_count(op, "k", k);
  check_value(norm == 1 || norm == 2, op, "norm must be 1 or 2", norm);
  KnnArgs args;
  args.order = parse_dist_order(op, dist_order);
  c10::SymDimVector shape(query_in.sym_sizes());
  shape.back() = k;
  const Tensor dist2 = output(args.dist2, shape, distance_type(points_in), points_in);
  const Tensor idx = output(args.idx, shape, points_in);
  if (points_in.is_meta()) return {dist2, idx};

  const Clouds points(points_in, layout.batch_offsets, layout.lengths);
  const Clouds query(query_in, layout.query_batch_offsets, layout.query_lengths);
  args.points = points.view;
  args.query = query.view;
  args.local_index = layout.local_index || !layout.packed();
  args.k = k.guard_int(__FILE__, __LINE__);
  if (points.view.columns != 3) args.order = DistOrder::kLoop;
  args.manhattan = norm == 1;
  run(op, points.points, args);
  return {dist2, idx};
}

Neighbors knn(const Tensor& points, const Tensor& query, c10::SymInt k, int64_t norm,
              std::string_view dist_order, const OptionalTensor& lengths,
              const OptionalTensor& query_lengths, const OptionalTensor& batch_offsets,
              const OptionalTensor& query_batch_offsets, bool local_index) {
  return search("knn", points, query, k, norm, dist_order,
                {batch_offsets, query_batch_offsets, local_index, lengths, query_lengths});
}

Neighbors three_nn(const Tensor& query, const Tensor& points, std::string_view dist_order,
                   const OptionalTensor& lengths, const OptionalTensor& query_lengths,
                   const OptionalTensor& batch_offsets, const OptionalTensor& query_batch_offsets,
                   bool local_index) {
  return search("three_nn", points, query, 3, 2, dist_order,
                {batch_offsets, query_batch_offsets, local_index, lengths, query_lengths});
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("knn", knn);
  ops.autocast("knn", {{{"points", "query"}}});
  ops.add("three_nn", three_nn);
  ops.autocast("three_nn", {{{"points", "query"}}});
}

}  // namespace
}  // namespace torchvox
