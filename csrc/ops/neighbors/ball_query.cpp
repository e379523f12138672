// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbors/ball_query/ball_query.h"

#include <torch/library.h>

#include "csrc/ops/core/device.h"
#include "csrc/ops/neighbors/ball_checks.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Outputs = std::tuple<Tensor, Tensor, Tensor>;

// What the batched and the ragged op have in common.
struct Options {
  double radius;
  const c10::SymInt& k;
  std::optional<double> radius2;
  double min_radius;
  double core_dist2;
  bool closed;
  std::string_view fill;
  std::string_view dist_order;
};

// Checks every option and sets what does not need the data.
BallQueryArgs parse_options(const char* op, const Tensor& points, const Options& options) {
  BallQueryArgs args;
  check_value(options.radius >= 0, op, "radius must be >= 0", options.radius);
  check_value(!options.radius2 || *options.radius2 >= 0, op, "radius2 must be >= 0",
              options.radius2.value_or(0));
  check_value(options.min_radius >= 0, op, "min_radius must be >= 0", options.min_radius);
  check_value(!std::isnan(options.core_dist2), op, "core_dist2 must be a number",
              options.core_dist2);
  args.pad = parse_word(op, "fill", options.fill, "first", "pad");
  args.order = parse_dist_order(op, options.dist_order);
  check_size(options.k.sym_ge(0), op, "k must be >= 0", options.k);
  check_below(options.k, kIndexLimit, op, "k must be below 2^31", options.k);
  const DType dtype = dtype_of(points.scalar_type());
  args.core = dtype == DType::kDouble ? options.core_dist2 : static_cast<float>(options.core_dist2);
  args.radius[0] = ball_radius(dtype, options.radius, options.radius2 ? &*options.radius2 : nullptr,
                               options.min_radius, options.core_dist2, options.closed);
  return args;
}

// dist2 and idx of the shape of the queries and k, count of that of the queries.
Outputs empty_outputs(const Tensor& query, const c10::SymInt& k) {
  const at::ScalarType type = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  c10::SymDimVector shape(query.sym_sizes());
  shape.back() = k;
  const c10::SymIntArrayRef rows(shape.data(), shape.size() - 1);
  return {empty_beside(shape, type, query), empty_beside(shape, at::kInt, query),
          empty_beside(rows, at::kInt, query)};
}

// Fills in the data and runs.
void finish(const char* op, BallQueryArgs& args, const Clouds& points, const Clouds& query,
            const Outputs& out) {
  const auto& [dist2, idx, count] = out;
  args.points = points.view;
  args.query = query.view;
  if (points.view.columns != 3) args.order = DistOrder::kLoop;
  args.slots = args.radius[0].k = idx.size(-1);
  args.dist2 = dist2.mutable_data_ptr();
  args.idx = idx.mutable_data_ptr<int32_t>();
  args.count = count.mutable_data_ptr<int32_t>();
  run(op, points.points, args);
}

Outputs ball_query(const Tensor& points, const Tensor& query, double radius, c10::SymInt k,
                   std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
                   std::string_view fill, std::string_view dist_order,
                   const OptionalTensor& lengths, const OptionalTensor& query_lengths) {
  const char* op = "ball_query";
  check_points_and_query(op, points, query, 3, "[B, N, D]", "[B, M, D]");
  const c10::SymInt clouds = points.sym_size(0);
  check_size(query.sym_size(0).sym_eq(clouds), op, "query must have the B of points",
             query.sym_sizes());
  check_queries(op, clouds, clouds * query.sym_size(1));
  BallQueryArgs args = parse_options(
      op, points, {radius, k, radius2, min_radius, core_dist2, closed, fill, dist_order});
  check_vector(op, "lengths", lengths, points, clouds, "[B]");
  check_vector(op, "query_lengths", query_lengths, points, clouds, "[B]");
  const Outputs out = empty_outputs(query, k);
  if (points.is_meta()) return out;
  finish(op, args, Clouds(points, {}, lengths), Clouds(query, {}, query_lengths), out);
  return out;
}

Outputs ball_query_ragged(const Tensor& points, const Tensor& query, const Tensor& batch_offsets,
                          const Tensor& query_batch_offsets, double radius, c10::SymInt k,
                          std::optional<double> radius2, double min_radius, double core_dist2,
                          bool closed, std::string_view fill, std::string_view dist_order,
                          bool local_index) {
  const char* op = "ball_query_ragged";
  check_points_and_query(op, points, query, 2, "[T, D]", "[U, D]");
  check_integers(op, "batch_offsets", batch_offsets);
  check_device(op, "batch_offsets", batch_offsets, points);
  check_value(batch_offsets.dim() == 1, op, "batch_offsets must be [B + 1]",
              batch_offsets.sym_sizes());
  check_size(batch_offsets.sym_size(0).sym_ge(1), op, "batch_offsets must be [B + 1]",
             batch_offsets.sym_sizes());
  check_vector(op, "query_batch_offsets", query_batch_offsets, points, batch_offsets.sym_size(0),
               "[B + 1], as batch_offsets");
  BallQueryArgs args = parse_options(
      op, points, {radius, k, radius2, min_radius, core_dist2, closed, fill, dist_order});
  check_queries(op, batch_offsets.sym_size(0) - 1, query.sym_size(0));
  const Outputs out = empty_outputs(query, k);
  if (points.is_meta()) return out;
  args.local_index = local_index;
  finish(op, args, Clouds(points, batch_offsets, {}), Clouds(query, query_batch_offsets, {}), out);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("ball_query", ball_query);
  ops.add("ball_query_ragged", ball_query_ragged);
}

}  // namespace
}  // namespace torchvox
