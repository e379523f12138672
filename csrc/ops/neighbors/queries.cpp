// SPDX-License-Identifier: Apache-2.0
//
// knn; ball_query and radius_neighbors: k neighbors within a radius, or all of them.
#include "csrc/kernels/neighbors/ball_query/ball_query.h"
#include "csrc/kernels/neighbors/knn/knn.h"
#include "csrc/kernels/neighbors/radius_neighbors.h"
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

struct BallOptions {
  double radius;
  const std::optional<double>& radius2;
  double min_radius, core_dist2;
  bool closed;
};

// Checks them and sets the first ball, its k aside.
void set_ball(const char* op, BallQueryArgs& args, const Tensor& points, const BallOptions& ball) {
  check_value(ball.radius >= 0, op, "radius must be >= 0", ball.radius);
  check_value(!ball.radius2 || *ball.radius2 >= 0, op, "radius2 must be >= 0",
              ball.radius2.value_or(0));
  check_value(ball.min_radius >= 0, op, "min_radius must be >= 0", ball.min_radius);
  check_value(!std::isnan(ball.core_dist2), op, "core_dist2 must be a number", ball.core_dist2);
  const DType dtype = dtype_of(points.scalar_type());
  args.core = dtype == DType::kDouble ? ball.core_dist2 : static_cast<float>(ball.core_dist2);
  args.radius[0] = ball_radius(dtype, ball.radius, ball.radius2 ? &*ball.radius2 : nullptr,
                               ball.min_radius, ball.core_dist2, ball.closed);
}

std::tuple<Tensor, Tensor, Tensor> ball_query(
    const Tensor& points_in, const Tensor& query_in, double radius, c10::SymInt k,
    std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
    std::string_view fill, std::string_view dist_order, const OptionalTensor& lengths,
    const OptionalTensor& query_lengths, const OptionalTensor& batch_offsets,
    const OptionalTensor& query_batch_offsets, bool local_index) {
  const char* op = "ball_query";
  Inputs in(op);
  add_padded_or_packed(in, points_in, query_in,
                       {batch_offsets, query_batch_offsets, local_index, lengths, query_lengths});
  BallQueryArgs args;
  set_ball(op, args, points_in, {radius, radius2, min_radius, core_dist2, closed});
  args.pad = parse_word(op, "fill", fill, "first", "pad");
  args.order = parse_dist_order(op, dist_order);
  check_count(op, "k", k);

  // dist2 and idx of the shape of the queries and k, count of that of the queries.
  c10::SymDimVector shape(query_in.sym_sizes());
  shape.back() = k;
  const Tensor dist2 = output(args.dist2, shape, distance_type(points_in), points_in);
  const Tensor idx = output(args.idx, shape, points_in);
  shape.pop_back();
  const Tensor count = output(args.count, shape, points_in);
  if (points_in.is_meta()) return {dist2, idx, count};

  const Clouds points(points_in, batch_offsets, lengths);
  const Clouds query(query_in, query_batch_offsets, query_lengths);
  args.points = points.view;
  args.query = query.view;
  args.local_index = local_index;
  if (points.view.columns != 3) args.order = DistOrder::kLoop;
  args.slots = args.radius[0].k = idx.size(-1);
  run(op, points.points, args);
  return {dist2, idx, count};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> radius_neighbors(
    const Tensor& points_in, const Tensor& query_in, double radius, c10::SymInt capacity,
    std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
    std::string_view dist_order, bool return_dist2, const OptionalTensor& batch_offsets,
    const OptionalTensor& query_batch_offsets) {
  const char* op = "radius_neighbors";
  const CloudLayout layout{batch_offsets, query_batch_offsets};
  Inputs in(op);
  add_points_and_query(in, points_in, query_in, layout, true);
  RadiusNeighborsArgs args;
  args.ball.order = parse_dist_order(op, dist_order);
  set_ball(op, args.ball, points_in, {radius, radius2, min_radius, core_dist2, closed});
  check_size(capacity.sym_ge(0), op, "capacity must be >= 0", capacity);

  const Tensor offsets = output(args.offsets, {in["U"] + 1}, points_in);
  const Tensor index = output(args.index, {capacity}, points_in);
  const at::ScalarType type = distance_type(points_in);
  const Tensor dist2 = return_dist2 ? output(args.dist2, {capacity}, type, points_in)
                                    : empty_beside({0}, type, points_in);
  const Tensor count = output(args.count, {1}, points_in);
  if (points_in.is_meta()) return {offsets, index, dist2, count};

  const Clouds points(points_in, batch_offsets, {});
  const Clouds query(query_in, query_batch_offsets, {});
  args.ball.points = points.view;
  args.ball.query = query.view;
  if (points.view.columns != 3) args.ball.order = DistOrder::kLoop;
  args.capacity = index.size(0);
  run(op, points.points, args);
  return {offsets, index, dist2, count};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("knn", knn);
  ops.autocast("knn", {{{"points", "query"}}});
  ops.add("three_nn", three_nn);
  ops.autocast("three_nn", {{{"points", "query"}}});
  ops.add("ball_query", ball_query);
  ops.autocast("ball_query", {{{"points", "query"}}});
  ops.add("radius_neighbors", radius_neighbors, not_differentiable());
  ops.autocast("radius_neighbors", {{{"points", "query"}}});
}

}  // namespace
}  // namespace torchvox
