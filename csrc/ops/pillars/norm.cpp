// SPDX-License-Identifier: Apache-2.0
//
// pillar_moments, and the batch norm that is computed from them.
#include "csrc/kernels/pillars/norm.h"

#include <ATen/ops/zeros_like.h>

#include <limits>

#include "csrc/kernels/pillars/moments.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/pillars/checks.h"

namespace torchvox {
namespace {

// Shared memory of a block holds some rows of the triangle.
constexpr int64_t kMostColumns = 24;

Tensor pillar_moments(const Tensor& points, const Tensor& indices, const Tensor& num_points,
                      const Tensor& point_voxel, const Tensor& point_slot,
                      c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range,
                      int64_t max_points, int64_t center_axes, bool legacy,
                      std::string_view pad_semantics) {
  const char* op = "pillar_moments";
  const PillarInputs in{points, indices, num_points, point_voxel, point_slot};
  Inputs inputs(op);
  in.add_to(inputs);
  check_size(points.sym_size(1).sym_le(kMostColumns), op, "points must have at most 24 columns",
             points.sym_sizes());
  PillarMomentsArgs args;
  PillarOptions{voxel_size, range, max_points, center_axes, legacy, pad_semantics}.put(op,
                                                                                       args.map);
  const c10::SymInt size = points.sym_size(1) + (4 + center_axes);
  Tensor moments = output(args.moments, {size * (size + 1) / 2}, points);
  if (points.is_meta()) return moments;
  Memory memory;
  in.put(args.map, memory, std::numeric_limits<int32_t>::max());
  run(op, points, args);
  return moments;
}

void check_norm(const char* op, Inputs& in, const Tensor& moments, const Tensor& weight,
                const Tensor& gamma, double eps) {
  in.add("weight", weight, Dtypes::kFloats, "[O, D]");
  in.add("gamma", gamma, Dtypes::kFloats, "[O]");
  check_dtype(op, "gamma", gamma.scalar_type(), "weight", weight.scalar_type());
  in.add("moments", moments, Dtypes::kFloat64, "[size]");
  const c10::SymInt width = in["D"] + 1;
  check_size(in["size"].sym_eq(width * (width + 1) / 2), op,
             "moments must be [(D + 1)(D + 2) / 2] with the D of weight", moments.sym_sizes());
  check_value(std::isfinite(eps) && eps > 0, op, "eps must be finite and above 0", eps);
}

void put(PillarNormArgs& args, Memory& memory, const Tensor& moments, const Tensor& weight,
         const Tensor& gamma, double eps) {
  args.moments = memory.of<double>(moments);
  args.weight = memory.of(weight);
  args.gamma = memory.of(gamma);
  args.dtype = dtype_of(weight.scalar_type());
  args.outputs = weight.size(0);
  args.columns = weight.size(1);
  args.eps = eps;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> pillar_norm(const Tensor& moments,
                                                       const Tensor& weight_in, const Tensor& gamma,
                                                       const Tensor& beta, double eps) {
  const char* op = "pillar_norm";
  Inputs in(op);
  check_norm(op, in, moments, weight_in, gamma, eps);
  in.add("beta", beta, Dtypes::kFloats, "[O]");
  check_dtype(op, "beta", beta.scalar_type(), "weight", weight_in.scalar_type());
  PillarNormArgs args;
  const Tensor weight = output_as(args.folded_weight, weight_in);
  const Tensor bias = output_as(args.folded_bias, beta);
  const Tensor mean = output_as(args.mean, beta), var = output_as(args.var, beta);
  if (weight_in.is_meta()) return {weight, bias, mean, var};
  Memory memory;
  put(args, memory, moments, weight_in, gamma, eps);
  args.beta = memory.of(beta);
  if (args.outputs > 0) run(op, weight_in, args);
  return {weight, bias, mean, var};
}

// A gradient that is None is 0.
std::tuple<Tensor, Tensor, Tensor> pillar_norm_backward(const OptionalTensor& grad_weight_or_none,
                                                        const OptionalTensor& grad_bias_or_none,
                                                        const Tensor& moments, const Tensor& weight,
                                                        const Tensor& gamma, double eps) {
  const char* op = "_pillar_norm_backward";
  Inputs in(op);
  check_norm(op, in, moments, weight, gamma, eps);
  const auto or_zeros = [](const OptionalTensor& grad, const Tensor& like) {
    return grad ? *grad : at::zeros_like(like);
  };
  const Tensor grad_weight = or_zeros(grad_weight_or_none, weight);
  const Tensor grad_bias = or_zeros(grad_bias_or_none, gamma);
  in.add("grad_weight", grad_weight, Dtypes::kFloats, "[O, D]");
  in.add("grad_bias", grad_bias, Dtypes::kFloats, "[O]");
  check_dtype(op, "grad_weight", grad_weight.scalar_type(), "weight", weight.scalar_type());
  check_dtype(op, "grad_bias", grad_bias.scalar_type(), "weight", weight.scalar_type());
  PillarNormBackwardArgs args;
  const Tensor to_weight = output_as(args.to_weight, weight);
  const Tensor to_gamma = output_as(args.to_gamma, gamma), to_beta = output_as(args.to_beta, gamma);
  if (weight.is_meta()) return {to_weight, to_gamma, to_beta};
  Memory memory;
  put(args.norm, memory, moments, weight, gamma, eps);
  args.grad_weight = memory.of(grad_weight);
  args.grad_bias = memory.of(grad_bias);
  if (args.norm.outputs > 0) run(op, weight, args);
  return {to_weight, to_gamma, to_beta};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("pillar_moments", pillar_moments, inference_only());
  ops.add("pillar_norm", pillar_norm);
  ops.autocast("pillar_norm", {{{"weight", "gamma", "beta"}}, {"moments"}, "", at::kDouble});
  ops.differentiable("pillar_norm", {.backward = "_pillar_norm_backward", .constant = "moments"});
  ops.add("_pillar_norm_backward", pillar_norm_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
