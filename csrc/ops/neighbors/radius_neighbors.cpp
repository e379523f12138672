// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbors/radius_neighbors.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/neighbors/ball.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor> radius_neighbors(
    const Tensor& points_in, const Tensor& query_in, double radius, c10::SymInt capacity,
    std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
    std::string_view dist_order, bool return_dist2, const OptionalTensor& batch_offsets,
    const OptionalTensor& query_batch_offsets) {
  const char* op = "radius_neighbors";
  const CloudLayout layout{batch_offsets, query_batch_offsets};
  check_packed_points_and_query(op, points_in, query_in, layout, "[T, D]");
  RadiusNeighborsArgs args;
  args.ball.order = parse_dist_order(op, dist_order);
  set_ball(op, args.ball, points_in, {radius, radius2, min_radius, core_dist2, closed});
  check_size(capacity.sym_ge(0), op, "capacity must be >= 0", capacity);

  const bool wide = points_in.scalar_type() == at::kDouble;
  const Tensor offsets = empty_beside({query_in.sym_size(0) + 1}, at::kLong, points_in);
  const Tensor index = empty_beside({capacity}, at::kInt, points_in);
  const Tensor dist2 =
      empty_beside({return_dist2 ? capacity : 0}, wide ? at::kDouble : at::kFloat, points_in);
  const Tensor count = empty_beside({1}, at::kLong, points_in);
  if (points_in.is_meta()) return {offsets, index, dist2, count};

  const Clouds points(points_in, batch_offsets, {});
  const Clouds query(query_in, query_batch_offsets, {});
  args.ball.points = points.view;
  args.ball.query = query.view;
  if (points.view.columns != 3) args.ball.order = DistOrder::kLoop;
  args.capacity = index.size(0);
  args.offsets = offsets.mutable_data_ptr<int64_t>();
  args.index = index.mutable_data_ptr<int32_t>();
  if (return_dist2) args.dist2 = dist2.mutable_data_ptr();
  args.count = count.mutable_data_ptr<int64_t>();
  run(op, points.points, args);
  return {offsets, index, dist2, count};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("radius_neighbors", radius_neighbors);
  ops.autograd("radius_neighbors", not_differentiable());
  ops.autocast("radius_neighbors", {{{"points", "query"}}});
}

}  // namespace
}  // namespace torchvox
