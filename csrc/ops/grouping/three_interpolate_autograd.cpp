// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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
    return torchvox::three_interpolate(features, idx, weight, channels_first);
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
                         bool channels_first, const OptionalTensor& batch_offsets,
                         const OptionalTensor& query_batch_offsets, bool local_index) {
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
  if (!wants_gradient(features) && !wants_gradient(weight)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return torchvox::three_interpolate(features, idx, weight, channels_first, batch_offsets,
                                       query_batch_offsets, local_index);
  }
  if (clouds.packed()) {
    const char* op = "three_interpolate";
    check_gradient_limit_of(op, features, 0, idx, 0, 3);
    const Tensor rows = packed_rows(op, features, idx, channels_first, clouds);
    check_dense(op, "weight", weight);
    return torchvox::three_interpolate(features.unsqueeze(0), rows, weight.unsqueeze(0)).squeeze(0);
  }
  check_gradient_limit_of("three_interpolate", features, channels_first ? 2 : 1, idx, 1, 3);
  return ThreeInterpolate::apply(features, idx, weight, channels_first);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(three_interpolate));
  ops.autograd("_three_interpolate_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
