// SPDX-License-Identifier: Apache-2.0
//
// Three nearest points, weights of their distances, interpolation. Without a gradient the weights
// are made inside the interpolation; with one, the op is its three differentiable parts. The bits
// are the same.
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/neighbor_index.h"
#include "csrc/ops/grouping/weight_rule.h"

namespace torchvox {
namespace {

WeightRule check_arguments(const Tensor& query, const Tensor& points, const Tensor& features,
                           double eps, std::string_view weight, const OptionalTensor& lengths,
                           const OptionalTensor& query_lengths) {
  const char* op = "interpolate_features";
  check_points_and_query(op, points, query, {kNoTensor, kNoTensor, false, lengths, query_lengths});
  Inputs in(op);
  in.add("points", points, Dtypes::kFloats, "[B, N, D]");
  in.add("features", features, Dtypes::kFloats, "[B, N, C]");
  return parse_weight_rule(op, weight, eps);
}

std::tuple<Tensor, Tensor> nearest_three(const Tensor& query, const Tensor& points,
                                         const OptionalTensor& lengths,
                                         const OptionalTensor& query_lengths) {
  static const auto op = typed_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, std::string_view, const OptionalTensor&, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&, bool)>("torchvox::three_nn");
  return op.call(query, points, "pn2", lengths, query_lengths, std::nullopt, std::nullopt, false);
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

  const auto [dist2, idx] = nearest_three(query, points, lengths, query_lengths);
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
  if (!wants_gradient(query) && !wants_gradient(points) && !wants_gradient(features)) {
    static const auto op =
        typed_op<decltype(interpolate_features)>("torchvox::interpolate_features");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return op.call(query, points, features, eps, weight, lengths, query_lengths);
  }
  check_arguments(query, points, features, eps, weight, lengths, query_lengths);
  const auto [dist2, idx] = nearest_three(query, points, lengths, query_lengths);
  static const auto weights_of =
      typed_op<Tensor(const Tensor&, double, std::string_view)>("torchvox::interpolation_weights");
  Tensor weights = weights_of.call(dist2, eps, weight);
  const bool is_double = features.scalar_type() == at::kDouble;
  if (weights.scalar_type() == at::kDouble && !is_double) weights = weights.to(at::kFloat);
  static const auto interpolate =
      typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool, const OptionalTensor&,
                      const OptionalTensor&, bool)>("torchvox::three_interpolate");
  return interpolate.call(features, idx, weights, false, std::nullopt, std::nullopt, false);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("interpolate_features", interpolate_features);
  ops.autocast("interpolate_features", {{{"points", "query"}}});
  ops.autograd("interpolate_features", interpolate_with_gradient);
}

}  // namespace
}  // namespace torchvox
