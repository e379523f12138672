// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& backward_op() {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, double, std::string_view)>(
      "torchvox::_interpolation_weights_backward");
  return op;
}

class InterpolationWeights : public torch::autograd::Function<InterpolationWeights> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& dist2, double eps,
                        std::string_view weight) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({dist2});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["weight"] = std::string(weight);
    ctx->set_materialize_grads(false);
    return torchvox::interpolation_weights(dist2, eps, weight);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    return {backward_op().call(grads[0], ctx->get_saved_variables()[0],
                               ctx->saved_data["eps"].toDouble(),
                               ctx->saved_data["weight"].toStringRef()),
            Tensor(), Tensor()};
  }
};

Tensor interpolation_weights(const Tensor& dist2, double eps, std::string_view weight) {
  if (wants_gradient(dist2)) return InterpolationWeights::apply(dist2, eps, weight);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return torchvox::interpolation_weights(dist2, eps, weight);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(interpolation_weights));
  ops.autograd("_interpolation_weights_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
