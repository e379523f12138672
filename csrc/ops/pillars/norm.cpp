// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/pillars/norm.h"

#include <ATen/ops/zeros_like.h>

#include "csrc/ops/core/op.h"
#include "csrc/ops/pillars/checks.h"

namespace torchvox {
namespace {

using Norm = std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                        const Tensor&, double);

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
  Tensor weight = empty_as(weight_in), bias = empty_as(beta);
  Tensor mean = empty_as(beta), var = empty_as(beta);
  if (weight_in.is_meta()) return {weight, bias, mean, var};
  PillarNormArgs args;
  Memory memory;
  put(args, memory, moments, weight_in, gamma, eps);
  args.beta = memory.of(beta);
  args.folded_weight = weight.mutable_data_ptr();
  args.folded_bias = bias.mutable_data_ptr();
  args.mean = mean.mutable_data_ptr();
  args.var = var.mutable_data_ptr();
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
  Tensor to_weight = empty_as(weight), to_gamma = empty_as(gamma);
  Tensor to_beta = empty_as(gamma);
  if (weight.is_meta()) return {to_weight, to_gamma, to_beta};
  PillarNormBackwardArgs args;
  Memory memory;
  put(args.norm, memory, moments, weight, gamma, eps);
  args.grad_weight = memory.of(grad_weight);
  args.grad_bias = memory.of(grad_bias);
  args.to_weight = to_weight.mutable_data_ptr();
  args.to_gamma = to_gamma.mutable_data_ptr();
  args.to_beta = to_beta.mutable_data_ptr();
  if (args.norm.outputs > 0) run(op, weight, args);
  return {to_weight, to_gamma, to_beta};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("pillar_norm", pillar_norm);
  ops.autocast("pillar_norm", {{{"weight", "gamma", "beta"}}, {"moments"}, "", at::kDouble});
  ops.differentiable("pillar_norm", {.backward = "_pillar_norm_backward", .constant = "moments"});
  ops.add("_pillar_norm_backward", pillar_norm_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
