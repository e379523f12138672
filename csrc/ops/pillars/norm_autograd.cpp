// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using NormBackward = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                        const Tensor&, const Tensor&, double);

class PillarNorm : public torch::autograd::Function<PillarNorm> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& moments, const Tensor& weight,
                               const Tensor& gamma, const Tensor& beta, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [folded_weight, folded_bias, mean, var] =
        torchvox::pillar_norm(moments, weight, gamma, beta, eps);
    ctx->save_for_backward({moments, weight, gamma});
    ctx->saved_data["eps"] = eps;
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({mean, var});
    return {folded_weight, folded_bias, mean, var};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = typed_op<NormBackward>("torchvox::_pillar_norm_backward");
    variable_list out(5);
    if (!grads[0].defined() && !grads[1].defined()) return out;
    const variable_list saved = ctx->get_saved_variables();
    const Tensor grad_weight = grads[0].defined() ? grads[0] : at::zeros_like(saved[1]);
    const Tensor grad_bias = grads[1].defined() ? grads[1] : at::zeros_like(saved[2]);
    auto [to_weight, to_gamma, to_beta] = op.call(grad_weight, grad_bias, saved[0], saved[1],
                                                  saved[2], ctx->saved_data["eps"].toDouble());
    if (ctx->needs_input_grad(1)) out[1] = to_weight;
    if (ctx->needs_input_grad(2)) out[2] = to_gamma;
    if (ctx->needs_input_grad(3)) out[3] = to_beta;
    return out;
  }
};

std::tuple<Tensor, Tensor, Tensor, Tensor> pillar_norm(const Tensor& moments, const Tensor& weight,
                                                       const Tensor& gamma, const Tensor& beta,
                                                       double eps) {
  TORCH_CHECK_NOT_IMPLEMENTED(!wants_gradient(moments),
                              "pillar_norm: moments have no gradient; detach them");
  if (wants_gradient(weight) || wants_gradient(gamma) || wants_gradient(beta)) {
    const auto out = PillarNorm::apply(moments, weight, gamma, beta, eps);
    return {out[0], out[1], out[2], out[3]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return torchvox::pillar_norm(moments, weight, gamma, beta, eps);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(pillar_norm));
  ops.autograd("_pillar_norm_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
