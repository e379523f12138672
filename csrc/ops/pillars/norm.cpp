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

struct NormTensors {
  Tensor moments, weight, gamma;

  NormTensors(const Tensor& moments, const Tensor& weight, const Tensor& gamma)
      : moments(moments.contiguous()), weight(weight.contiguous()), gamma(gamma.contiguous()) {}
  void put(PillarNormArgs& args, double eps) const {
    args.moments = moments.const_data_ptr<double>();
    args.weight = weight.const_data_ptr();
    args.gamma = gamma.const_data_ptr();
    args.dtype = dtype_of(weight.scalar_type());
    args.outputs = weight.size(0);
    args.columns = weight.size(1);
    args.eps = eps;
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> pillar_norm(const Tensor& moments,
                                                       const Tensor& weight_in,
                                                       const Tensor& gamma_in,
                                                       const Tensor& beta_in, double eps) {
  const char* op = "pillar_norm";
  Inputs in(op);
  check_norm(op, in, moments, weight_in, gamma_in, eps);
  in.add("beta", beta_in, Dtypes::kFloats, "[O]");
  check_dtype(op, "beta", beta_in.scalar_type(), "weight", weight_in.scalar_type());
  Tensor weight = empty_as(weight_in), bias = empty_as(beta_in);
  Tensor mean = empty_as(beta_in), var = empty_as(beta_in);
  if (weight_in.is_meta()) return {weight, bias, mean, var};
  const NormTensors tensors(moments, weight_in, gamma_in);
  const Tensor beta = beta_in.contiguous();
  PillarNormArgs args;
  tensors.put(args, eps);
  args.beta = beta.const_data_ptr();
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
                                                        const Tensor& moments,
                                                        const Tensor& weight_in,
                                                        const Tensor& gamma_in, double eps) {
  const char* op = "_pillar_norm_backward";
  Inputs in(op);
  check_norm(op, in, moments, weight_in, gamma_in, eps);
  const auto or_zeros = [](const OptionalTensor& grad, const Tensor& like) {
    return grad ? *grad : at::zeros_like(like);
  };
  const Tensor grad_weight_in = or_zeros(grad_weight_or_none, weight_in);
  const Tensor grad_bias_in = or_zeros(grad_bias_or_none, gamma_in);
  in.add("grad_weight", grad_weight_in, Dtypes::kFloats, "[O, D]");
  in.add("grad_bias", grad_bias_in, Dtypes::kFloats, "[O]");
  check_dtype(op, "grad_weight", grad_weight_in.scalar_type(), "weight", weight_in.scalar_type());
  check_dtype(op, "grad_bias", grad_bias_in.scalar_type(), "weight", weight_in.scalar_type());
  Tensor to_weight = empty_as(weight_in), to_gamma = empty_as(gamma_in);
  Tensor to_beta = empty_as(gamma_in);
  if (weight_in.is_meta()) return {to_weight, to_gamma, to_beta};
  const NormTensors tensors(moments, weight_in, gamma_in);
  const Tensor grad_weight = grad_weight_in.contiguous(), grad_bias = grad_bias_in.contiguous();
  PillarNormBackwardArgs args;
  tensors.put(args.norm, eps);
  args.grad_weight = grad_weight.const_data_ptr();
  args.grad_bias = grad_bias.const_data_ptr();
  args.to_weight = to_weight.mutable_data_ptr();
  args.to_gamma = to_gamma.mutable_data_ptr();
  args.to_beta = to_beta.mutable_data_ptr();
  if (args.norm.outputs > 0) run(op, weight_in, args);
  return {to_weight, to_gamma, to_beta};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("pillar_norm", pillar_norm);
  ops.autocast("pillar_norm", {{{"weight", "gamma", "beta"}}, {"moments"}, "", at::kDouble});
  ops.differentiable("pillar_norm", {.backward = "_pillar_norm_backward", .constant = "moments"});
  ops.add("_pillar_norm_backward", pillar_norm_backward);
  ops.autograd("_pillar_norm_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
