// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/interpolate.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/weight_rule.h"

namespace torchvox {
namespace {

void check_distances(const char* op, const Tensor& dist2) {
  check_type(dist2.scalar_type() == at::kFloat || dist2.scalar_type() == at::kDouble, op,
             "dist2 must be float32 or float64", dist2.scalar_type());
  check_value(dist2.dim() >= 1, op, "dist2 must be [.., 3]", dist2.sym_sizes());
  check_size(dist2.sym_size(-1).sym_eq(3), op, "dist2 must be [.., 3]", dist2.sym_sizes());
}

Tensor compute(const char* op, const Tensor& dist2_in, const Tensor& grad_in,
               const WeightRule& rule) {
  const Tensor out = empty_as(dist2_in);
  if (dist2_in.is_meta()) return out;
  const Tensor dist2 = dist2_in.contiguous();
  const Tensor grad = grad_in.defined() ? grad_in.contiguous() : Tensor();
  InterpolationWeightsArgs args;
  args.dist2 = dist2.const_data_ptr();
  args.grad = grad.defined() ? grad.const_data_ptr() : nullptr;
  args.out = out.mutable_data_ptr();
  args.dtype = dtype_of(dist2.scalar_type());
  args.rule = rule;
  args.queries = dist2.numel() / kNearest;
  run(op, dist2, args);
  return out;
}

Tensor interpolation_weights(const Tensor& dist2, double eps, std::string_view weight) {
  const char* op = "interpolation_weights";
  check_distances(op, dist2);
  return compute(op, dist2, Tensor(), parse_weight_rule(op, weight, eps));
}

Tensor interpolation_weights_backward(const Tensor& grad, const Tensor& dist2, double eps,
                                      std::string_view weight) {
  const char* op = "_interpolation_weights_backward";
  check_distances(op, dist2);
  check_dtype(op, "grad", grad.scalar_type(), "dist2", dist2.scalar_type());
  const char* rule = "grad must have the shape of dist2";
  check_value(grad.dim() == dist2.dim(), op, rule, grad.sym_sizes());
  for (int axis = 0; axis < grad.dim(); ++axis) {
    check_size(grad.sym_size(axis).sym_eq(dist2.sym_size(axis)), op, rule, grad.sym_sizes());
  }
  check_device(op, "dist2", dist2, "grad", grad);
  return compute(op, dist2, grad, parse_weight_rule(op, weight, eps));
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("interpolation_weights", interpolation_weights);
  ops.autocast("interpolation_weights", {{}, {"dist2"}});
  ops.differentiable("interpolation_weights", {"_interpolation_weights_backward"});
  ops.add("_interpolation_weights_backward", interpolation_weights_backward);
  ops.autograd("_interpolation_weights_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
