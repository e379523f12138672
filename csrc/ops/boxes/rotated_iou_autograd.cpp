// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& backward_op() {
  static const auto op = typed_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, std::string_view, bool, bool, bool)>(
      "torchvox::_rotated_iou_backward");
  return op;
}

class RotatedIou : public torch::autograd::Function<RotatedIou> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& a, const Tensor& b,
                        std::string_view mode, bool paired) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({a, b});
    ctx->saved_data["mode"] = std::string(mode);
    ctx->saved_data["paired"] = paired;
    ctx->set_materialize_grads(false);
    return torchvox::rotated_iou(a, b, mode, paired);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const variable_list saved = ctx->get_saved_variables();
    const bool for_a = ctx->needs_input_grad(0), for_b = ctx->needs_input_grad(1);
    const std::string mode = ctx->saved_data["mode"].toStringRef();
    const auto [grad_a, grad_b] = backward_op().call(
        grads[0], saved[0], saved[1], mode, ctx->saved_data["paired"].toBool(), for_a, for_b);
    return {for_a ? grad_a : Tensor(), for_b ? grad_b : Tensor(), Tensor(), Tensor()};
  }
};

Tensor rotated_iou(const Tensor& a, const Tensor& b, std::string_view mode, bool paired) {
  if (wants_gradient(a) || wants_gradient(b)) return RotatedIou::apply(a, b, mode, paired);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return torchvox::rotated_iou(a, b, mode, paired);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(rotated_iou));
  ops.autograd("_rotated_iou_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
