// SPDX-License-Identifier: Apache-2.0
//
// Three nearest points, weights of their distances, interpolation. Without a gradient the weights
// are made inside the interpolation; with one, the op is its three differentiable parts. The bits
// are the same.
#include <torch/library.h>

#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/ops/core/autograd.h"
#include "csrc/ops/grouping/neighbor_index.h"
#include "csrc/ops/grouping/weight_rule.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

WeightRule check_arguments(const Tensor& query, const Tensor& points, const Tensor& features,
                           double eps, std::string_view weight, const OptionalTensor& lengths,
                           const OptionalTensor& query_lengths) {
  const char* op = "interpolate_features";
  const char* query_rule = "query must be [B, M, D] with D >= 1";
  check_value(query.dim() == 3, op, query_rule, query.sym_sizes());
  check_size(query.sym_size(2).sym_ge(1), op, query_rule, query.sym_sizes());
  check_type(is_coordinate_type(query.scalar_type()), op,
             "query must be float16, bfloat16, float32 or float64", query.scalar_type());
  const char* points_rule = "points must be [B, N, D] with the B and D of query";
  check_value(points.dim() == 3, op, points_rule, points.sym_sizes());
  check_type(points.scalar_type() == query.scalar_type(), op, "points must have the dtype of query",
             points.scalar_type());
  const char* features_rule = "features must be [B, N, C] with the B and N of points";
  check_value(features.dim() == 3, op, features_rule, features.sym_sizes());
  check_type(is_coordinate_type(features.scalar_type()), op,
             "features must be float16, bfloat16, float32 or float64", features.scalar_type());
  for (const int axis : {0, 2}) {
    check_size(points.sym_size(axis).sym_eq(query.sym_size(axis)), op, points_rule,
               points.sym_sizes());
  }
  for (const int axis : {0, 1}) {
    check_size(features.sym_size(axis).sym_eq(points.sym_size(axis)), op, features_rule,
               features.sym_sizes());
  }
  check_below(points.sym_size(1), kIndexLimit, op, "points must have N < 2^31", points.sym_sizes());
  check_device(op, "points", points, "query", query);
  check_device(op, "features", features, "query", query);
  for (const auto& [name, tensor] :
       {std::pair<const char*, const OptionalTensor&>("lengths", lengths),
        {"query_lengths", query_lengths}}) {
    if (!tensor) continue;
    check_integers(op, name, *tensor);
    check_device(op, name, *tensor, "query", query);
    check_value(tensor->dim() == 1, op, {name, " must be [B]"}, tensor->sym_sizes());
    check_size(tensor->sym_size(0).sym_eq(query.sym_size(0)), op, {name, " must be [B]"},
               tensor->sym_sizes());
  }
  return parse_weight_rule(op, weight, eps);
}

std::tuple<Tensor, Tensor> nearest(const Tensor& query, const Tensor& points,
                                   const OptionalTensor& lengths,
                                   const OptionalTensor& query_lengths) {
  static const auto op =
      typed_op<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, std::string_view,
                                          const OptionalTensor&, const OptionalTensor&)>(
          "torchvox::three_nn");
  return op.call(query, points, "pn2", lengths, query_lengths);
}

Tensor interpolate_features(const Tensor& query, const Tensor& points, const Tensor& features_in,
                            double eps, std::string_view weight, const OptionalTensor& lengths,
                            const OptionalTensor& query_lengths) {
  InterpolateArgs args;
  args.rule = check_arguments(query, points, features_in, eps, weight, lengths, query_lengths);
  const Tensor out =
      empty_beside({features_in.sym_size(0), query.sym_size(1), features_in.sym_size(2)},
                   features_in.scalar_type(), features_in);
  if (query.is_meta()) return out;

  const auto [dist2, idx] = nearest(query, points, lengths, query_lengths);
  const Tensor features = features_in.contiguous();
  args.features = features.const_data_ptr();
  args.dtype = dtype_of(features.scalar_type());
  args.idx = index_array(idx);
  args.weight = dist2.const_data_ptr();
  args.weight_dtype = dtype_of(dist2.scalar_type());
  args.from_dist2 = true;
  args.out = out.mutable_data_ptr();
  args.clouds = features.size(0);
  args.rows = features.size(1);
  args.queries = query.size(1);
  args.channels = features.size(2);
  run("interpolate_features", features, args);
  return out;
}

Tensor interpolate_with_gradient(const Tensor& query, const Tensor& points, const Tensor& features,
                                 double eps, std::string_view weight, const OptionalTensor& lengths,
                                 const OptionalTensor& query_lengths) {
  static const auto fused_op =
      typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&, double, std::string_view,
                      const OptionalTensor&, const OptionalTensor&)>(
          "torchvox::interpolate_features");
  static const auto weights_op =
      typed_op<Tensor(const Tensor&, double, std::string_view)>("torchvox::interpolation_weights");
  static const auto interpolate_op =
      typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>(
          "torchvox::three_interpolate");
  if (!wants_gradient(query) && !wants_gradient(points) && !wants_gradient(features)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return fused_op.call(query, points, features, eps, weight, lengths, query_lengths);
  }
  check_arguments(query, points, features, eps, weight, lengths, query_lengths);
  const auto [dist2, idx] = nearest(query, points, lengths, query_lengths);
  Tensor weights = weights_op.call(dist2, eps, weight);
  const bool is_double = features.scalar_type() == at::kDouble;
  if (weights.scalar_type() == at::kDouble && !is_double) weights = weights.to(at::kFloat);
  return interpolate_op.call(features, idx, weights, false);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("interpolate_features", interpolate_features);
  ops.autograd("interpolate_features", interpolate_with_gradient);
}

}  // namespace
}  // namespace torchvox
