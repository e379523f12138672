// SPDX-License-Identifier: Apache-2.0
//
// A gather and its gradient are linear, and each is the gradient of the other: derivatives of any
// order come for nothing.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct GatherPoints {
  static constexpr const char* kName = "gather_points";
  static constexpr const char* kForward = "torchvox::gather_points";
  static constexpr const char* kBackward = "torchvox::_gather_points_backward";
};
struct GroupPoints {
  static constexpr const char* kName = "group_points";
  static constexpr const char* kForward = "torchvox::group_points";
  static constexpr const char* kBackward = "torchvox::_group_points_backward";
};

template <class Op>
const auto& forward_op() {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, bool)>(Op::kForward);
  return op;
}
template <class Op>
const auto& backward_op() {
  static const auto op =
      typed_op<Tensor(const Tensor&, const Tensor&, c10::SymInt, bool)>(Op::kBackward);
  return op;
}

template <class Op>
class Gather : public torch::autograd::Function<Gather<Op>> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& features, const Tensor& idx,
                        bool channels_first) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({idx});
    ctx->saved_data["channels_first"] = channels_first;
    ctx->saved_data["num_points"] = features.sym_size(channels_first ? 2 : 1);
    ctx->set_materialize_grads(false);
    return forward_op<Op>().call(features, idx, channels_first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor()};
    return {backward_op<Op>().call(grads[0], ctx->get_saved_variables()[0],
                                   ctx->saved_data["num_points"].toSymInt(),
                                   ctx->saved_data["channels_first"].toBool()),
            Tensor(), Tensor()};
  }
};

template <class Op>
class GatherBackward : public torch::autograd::Function<GatherBackward<Op>> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& idx,
                        const c10::SymInt& num_points, bool channels_first) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({idx});
    ctx->saved_data["channels_first"] = channels_first;
    ctx->set_materialize_grads(false);
    return backward_op<Op>().call(grad, idx, num_points, channels_first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    return {forward_op<Op>().call(grads[0], ctx->get_saved_variables()[0],
                                  ctx->saved_data["channels_first"].toBool()),
            Tensor(), Tensor(), Tensor()};
  }
};

template <class Op>
Tensor forward(const Tensor& features, const Tensor& idx, bool channels_first) {
  const c10::SymInt k = idx.dim() == 3 ? idx.sym_size(2) : c10::SymInt(1);
  check_gradient_limit_of(Op::kName, features, channels_first ? 2 : 1, idx, 1, k);
  if (wants_gradient(features)) return Gather<Op>::apply(features, idx, channels_first);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return forward_op<Op>().call(features, idx, channels_first);
}

template <class Op>
Tensor backward(const Tensor& grad, const Tensor& idx, c10::SymInt num_points,
                bool channels_first) {
  if (wants_gradient(grad)) {
    return GatherBackward<Op>::apply(grad, idx, num_points, channels_first);
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return backward_op<Op>().call(grad, idx, num_points, channels_first);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd("gather_points", forward<GatherPoints>);
  ops.autograd("_gather_points_backward", backward<GatherPoints>);
  ops.autograd("group_points", forward<GroupPoints>);
  ops.autograd("_group_points_backward", backward<GroupPoints>);
}

}  // namespace
}  // namespace torchvox
