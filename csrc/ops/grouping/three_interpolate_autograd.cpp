// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& interpolate_op() {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&, bool)>(
      "torchvox::three_interpolate");
  return op;
}
const auto& backward_op() {
  static const auto op = typed_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool, bool, bool)>(
      "torchvox::_three_interpolate_backward");
  return op;
}

class ThreeInterpolate : public torch::autograd::Function<ThreeInterpolate> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& features, const Tensor& idx,
                        const Tensor& weight, bool channels_first) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({features, idx, weight});
    ctx->saved_data["channels_first"] = channels_first;
    ctx->set_materialize_grads(false);
    return interpolate_op().call(features, idx, weight, channels_first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const variable_list saved = ctx->get_saved_variables();
    const bool for_features = ctx->needs_input_grad(0), for_weight = ctx->needs_input_grad(2);
    const auto [grad_features, grad_weight] =
        backward_op().call(grads[0], saved[0], saved[1], saved[2],
                           ctx->saved_data["channels_first"].toBool(), for_features, for_weight);
    return {for_features ? grad_features : Tensor(), Tensor(), for_weight ? grad_weight : Tensor(),
            Tensor()};
  }
};

Tensor three_interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                         bool channels_first) {
  check_gradient_limit_of("three_interpolate", features, channels_first ? 2 : 1, idx, 1, 3);
  if (wants_gradient(features) || wants_gradient(weight)) {
    return ThreeInterpolate::apply(features, idx, weight, channels_first);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return interpolate_op().call(features, idx, weight, channels_first);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd("three_interpolate", three_interpolate);
  ops.autograd("_three_interpolate_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
