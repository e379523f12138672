// SPDX-License-Identifier: Apache-2.0
//
// three_interpolate; interpolation_weights, which turns distances into weights; and
// interpolate_features, which is the three nearest points, their weights and the interpolation in
// one: without a gradient the weights are made inside the interpolation; with one, the op is its
// three differentiable parts. The bits are the same.
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/segment_sum.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

void check_arguments(Inputs& in, const char* op, const Tensor& features, const Tensor& idx,
                     const Tensor& weight, bool channels_first) {
  in.add("features", features, Dtypes::kFloats, channels_first ? "[B, C, N]" : "[B, N, C]");
  in.add("idx", idx, Dtypes::kIndices, "[B, M, 3]");
  check_type(weight.scalar_type() == at::kFloat || weight.scalar_type() == features.scalar_type(),
             op, "weight must be float32 or of the dtype of features", weight.scalar_type());
  in.add("weight", weight, Dtypes::kFloats, "[B, M, 3]");
}

Tensor interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                   bool channels_first) {
  const char* op = "three_interpolate";
  Inputs in(op);
  check_arguments(in, op, features, idx, weight, channels_first);
  c10::SymDimVector shape(features.sym_sizes());
  shape[channels_first ? 2 : 1] = idx.sym_size(1);
  InterpolateArgs args;
  const Tensor out = output(args.out, shape, features.scalar_type(), features);
  if (features.is_meta()) return out;

  Memory memory;
  args.features = memory.of(features);
  args.dtype = dtype_of(features.scalar_type());
  args.idx = memory.indices(idx);
  args.weight = memory.of(weight);
  args.weight_dtype = dtype_of(weight.scalar_type());
  args.clouds = features.size(0);
  args.rows = features.size(channels_first ? 2 : 1);
  args.queries = idx.size(1);
  args.channels = features.size(channels_first ? 1 : 2);
  args.channels_first = channels_first;
  run(op, features, args);
  return out;
}

Tensor three_interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                         bool channels_first, const OptionalTensor& batch_offsets,
                         const OptionalTensor& query_batch_offsets, bool local_index) {
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
  if (!clouds.packed()) return interpolate(features, idx, weight, channels_first);
  const char* op = "three_interpolate";
  const Tensor rows = packed_rows(op, features, idx, channels_first, clouds);
  check_given(op, "weight", weight);
  return interpolate(features.unsqueeze(0), rows, weight.unsqueeze(0), false).squeeze(0);
}

std::tuple<Tensor, Tensor> three_interpolate_backward(const Tensor& grad_in, const Tensor& features,
                                                      const Tensor& idx_in, const Tensor& weight,
                                                      bool channels_first, bool for_features,
                                                      bool for_weight) {
  const char* op = "_three_interpolate_backward";
  Inputs in(op);
  check_arguments(in, op, features, idx_in, weight, channels_first);
  in.add("grad", grad_in, Dtypes::kFloats, channels_first ? "[B, C, M]" : "[B, M, C]");
  check_dtype(op, "grad", grad_in.scalar_type(), "features", features.scalar_type());
  if (for_features) {
    check_gradient_limit(op, features.sym_size(channels_first ? 2 : 1), idx_in.sym_size(1) * 3);
  }
  SegmentSumArgs sum;
  InterpolateWeightGradArgs args;
  const Tensor grad_features = output_gradient(sum.out, features, for_features);
  const Tensor grad_weight = output_gradient(args.grad_weight, weight, for_weight);
  if (grad_in.is_meta()) return {grad_features, grad_weight};

  Memory memory;
  const Tensor grad = grad_in.contiguous(), idx = idx_in.contiguous();
  args.clouds = features.size(0);
  args.rows = features.size(channels_first ? 2 : 1);
  args.queries = idx.size(1);
  args.channels = sum.channels = features.size(channels_first ? 1 : 2);
  args.channels_first = sum.channels_first = channels_first;
  args.dtype = sum.dtype = dtype_of(grad.scalar_type());
  args.grad = sum.grad = grad.const_data_ptr();
  if (for_features) {
    const bool is_double = grad.scalar_type() == at::kDouble;
    const Tensor wide = weight.contiguous().to(is_double ? at::kDouble : at::kFloat);
    const OwnedInverseIndex owned = build_inverse_index(op, idx, args.clouds, args.rows);
    sum.weight = wide.const_data_ptr();
    sum.inverse = owned.inverse;
    run(op, grad, sum);
  }
  if (for_weight) {
    args.features = memory.of(features);
    args.idx = index_array(idx);
    args.weight_dtype = dtype_of(weight.scalar_type());
    run(op, grad, args);
  }
  return {grad_features, grad_weight};
}

void check_interpolation_gradient(const Call& call) {
  check_gradient_of_features(call, CallLayout(call).clouds.packed(), 3);
}

// Packed rows as one padded cloud.
OptionalTensor interpolate_packed(const Call& call) {
  const CallLayout layout(call);
  if (!layout.clouds.packed()) return std::nullopt;
  const Tensor features = call.tensor("features"), weight = call.tensor("weight");
  const Tensor rows = packed_rows(call.op(), features, call.tensor("idx"),
                                  call["channels_first"].toBool(), layout.clouds);
  check_dense(call.op(), "weight", weight);
  static const auto padded = typed_op<decltype(three_interpolate)>("torchvox::three_interpolate");
  return padded
      .call(features.unsqueeze(0), rows, weight.unsqueeze(0), false, std::nullopt, std::nullopt,
            false)
      .squeeze(0);
}

WeightRule parse_weight_rule(const char* op, std::string_view weight, double eps) {
  const bool squared = parse_word(op, "weight", weight, "dist", "dist2");
  // Three weights of coincident points must have a finite sum in float32.
  check_value(std::isfinite(eps) && static_cast<float>(eps) >= 1e-38f, op,
              "eps must be finite and positive in float32, at least 1e-38", eps);
  return {squared, eps};
}

void check_distances(const char* op, const Tensor& dist2) {
  check_type(dist2.scalar_type() == at::kFloat || dist2.scalar_type() == at::kDouble, op,
             "dist2 must be float32 or float64", dist2.scalar_type());
  check_value(dist2.dim() >= 1, op, "dist2 must be [.., 3]", dist2.sym_sizes());
  check_size(dist2.sym_size(-1).sym_eq(3), op, "dist2 must be [.., 3]", dist2.sym_sizes());
}

// The gradient of the weights, or the weights themselves.
Tensor compute(const char* op, const Tensor& dist2, const OptionalTensor& grad,
               const WeightRule& rule) {
  InterpolationWeightsArgs args;
  const Tensor out = output(args.out, dist2.sym_sizes(), dist2.scalar_type(), dist2);
  if (dist2.is_meta()) return out;
  Memory memory;
  args.dist2 = memory.of(dist2);
  args.grad = memory.of(grad);
  args.dtype = dtype_of(dist2.scalar_type());
  args.rule = rule;
  args.queries = dist2.numel() / kNearest;
  run(op, dist2, args);
  return out;
}

Tensor interpolation_weights(const Tensor& dist2, double eps, std::string_view weight) {
  const char* op = "interpolation_weights";
  check_distances(op, dist2);
  return compute(op, dist2, {}, parse_weight_rule(op, weight, eps));
}

Tensor interpolation_weights_backward(const Tensor& grad, const Tensor& dist2, double eps,
                                      std::string_view weight) {
  const char* op = "_interpolation_weights_backward";
  check_distances(op, dist2);
  check_same(op, "grad", grad, "dist2", dist2, dist2.sym_sizes(), dist2.scalar_type());
  return compute(op, dist2, grad, parse_weight_rule(op, weight, eps));
}

WeightRule check_arguments(const Tensor& query, const Tensor& points, const Tensor& features,
                           double eps, std::string_view weight, const OptionalTensor& lengths,
                           const OptionalTensor& query_lengths) {
  const char* op = "interpolate_features";
  Inputs in(op);
  add_points_and_query(in, points, query, {kNoTensor, kNoTensor, false, lengths, query_lengths},
                       false);
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

Tensor interpolate_features(const Tensor& query, const Tensor& points, const Tensor& features,
                            double eps, std::string_view weight, const OptionalTensor& lengths,
                            const OptionalTensor& query_lengths) {
  InterpolateArgs args;
  args.rule = check_arguments(query, points, features, eps, weight, lengths, query_lengths);
  const Tensor out =
      output(args.out, {features.sym_size(0), query.sym_size(1), features.sym_size(2)},
             features.scalar_type(), features);
  if (query.is_meta()) return out;

  const auto [dist2, idx] = nearest_three(query, points, lengths, query_lengths);
  Memory memory;
  args.features = memory.of(features);
  args.dtype = dtype_of(features.scalar_type());
  args.idx = index_array(idx);
  args.weight = dist2.const_data_ptr();
  args.weight_dtype = dtype_of(dist2.scalar_type());
  args.from_dist2 = true;
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
  ops.add("three_interpolate", three_interpolate);
  ops.autocast("three_interpolate", {{}, {"weight"}, "features"});
  ops.differentiable("three_interpolate",
                     {.backward = "_three_interpolate_backward",
                      .prepare = check_interpolation_gradient,
                      .compose = interpolate_packed});
  ops.add("_three_interpolate_backward", three_interpolate_backward, no_second_derivative());
  ops.add("interpolation_weights", interpolation_weights);
  ops.autocast("interpolation_weights", {{}, {"dist2"}});
  ops.differentiable("interpolation_weights", {"_interpolation_weights_backward"});
  ops.add("_interpolation_weights_backward", interpolation_weights_backward,
          no_second_derivative());
  ops.add("interpolate_features", interpolate_features);
  ops.autocast("interpolate_features", {{{"points", "query"}}});
  ops.autograd("interpolate_features", interpolate_with_gradient);
}

}  // namespace
}  // namespace torchvox
