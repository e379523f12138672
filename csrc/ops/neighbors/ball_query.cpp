// SPDX-License-Identifier: Apache-2.0
#include "csrc/ops/neighbors/ball.h"

#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

using Outputs = std::tuple<Tensor, Tensor, Tensor>;

Outputs ball_query(const Tensor& points_in, const Tensor& query_in, double radius, c10::SymInt k,
                   std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
                   std::string_view fill, std::string_view dist_order,
                   const OptionalTensor& lengths, const OptionalTensor& query_lengths,
                   const OptionalTensor& batch_offsets, const OptionalTensor& query_batch_offsets,
                   bool local_index) {
  const char* op = "ball_query";
  check_points_and_query(op, points_in, query_in,
                         {batch_offsets, query_batch_offsets, local_index, lengths, query_lengths},
                         kPaddedOrPacked);
  BallQueryArgs args;
  set_ball(op, args, points_in, {radius, radius2, min_radius, core_dist2, closed});
  args.pad = parse_word(op, "fill", fill, "first", "pad");
  args.order = parse_dist_order(op, dist_order);
  check_count(op, "k", k);

  // dist2 and idx of the shape of the queries and k, count of that of the queries.
  c10::SymDimVector shape(query_in.sym_sizes());
  shape.back() = k;
  const at::ScalarType type = points_in.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor dist2 = empty_beside(shape, type, points_in);
  const Tensor idx = empty_beside(shape, at::kInt, points_in);
  shape.pop_back();
  const Tensor count = empty_beside(shape, at::kInt, points_in);
  if (points_in.is_meta()) return {dist2, idx, count};

  const Clouds points(points_in, batch_offsets, lengths);
  const Clouds query(query_in, query_batch_offsets, query_lengths);
  args.points = points.view;
  args.query = query.view;
  args.local_index = local_index;
  if (points.view.columns != 3) args.order = DistOrder::kLoop;
  args.slots = args.radius[0].k = idx.size(-1);
  args.dist2 = dist2.mutable_data_ptr();
  args.idx = idx.mutable_data_ptr<int32_t>();
  args.count = count.mutable_data_ptr<int32_t>();
  run(op, points.points, args);
  return {dist2, idx, count};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("ball_query", ball_query);
  ops.autocast("ball_query", {{{"points", "query"}}});
}

}  // namespace
}  // namespace torchvox
