// SPDX-License-Identifier: Apache-2.0
//
// A gather and its gradient are linear, and each is the gradient of the other: derivatives of any
// order come for nothing.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& gather_op() {
  static const auto op =
      typed_op<Tensor(const Tensor&, const Tensor&, bool)>("torchvox::gather_points");
  return op;
}
const auto& backward_op() {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, bool)>(
      "torchvox::_gather_points_backward");
  return op;
}

class GatherPoints : public torch::autograd::Function<GatherPoints> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& features, const Tensor& idx,
                        bool channels_first) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({idx});
    ctx->saved_data["channels_first"] = channels_first;
    ctx->saved_data["num_points"] = features.sym_size(channels_first ? 2 : 1);
    ctx->set_materialize_grads(false);
    return gather_op().call(features, idx, channels_first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    return {backward_op().call(grads[0], ctx->get_saved_variables()[0],
                               ctx->saved_data["num_points"].toSymInt(),
                               ctx->saved_data["channels_first"].toBool()),
            Tensor(), Tensor()};
  }
};

class GatherPointsBackward : public torch::autograd::Function<GatherPointsBackward> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& idx,
                        const c10::SymInt& num_points, bool channels_first) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({idx});
    ctx->saved_data["channels_first"] = channels_first;
    ctx->set_materialize_grads(false);
    return backward_op().call(grad, idx, num_points, channels_first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    return {gather_op().call(grads[0], ctx->get_saved_variables()[0],
                             ctx->saved_data["channels_first"].toBool()),
            Tensor(), Tensor(), Tensor()};
  }
};

Tensor gather_points(const Tensor& features, const Tensor& idx, bool channels_first) {
  if (wants_gradient(features)) return GatherPoints::apply(features, idx, channels_first);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return gather_op().call(features, idx, channels_first);
}

Tensor gather_points_backward(const Tensor& grad, const Tensor& idx, c10::SymInt num_points,
                              bool channels_first) {
  if (wants_gradient(grad)) {
    return GatherPointsBackward::apply(grad, idx, num_points, channels_first);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return backward_op().call(grad, idx, num_points, channels_first);
}

TORCH_LIBRARY_IMPL(torchvox, Autograd, m) {
  m.impl("gather_points", gather_points);
  m.impl("_gather_points_backward", gather_points_backward);
}

}  // namespace
}  // namespace torchvox
