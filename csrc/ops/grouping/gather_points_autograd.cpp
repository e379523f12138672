// SPDX-License-Identifier: Apache-2.0
//
// A gather and its gradient are linear, and each is the gradient of the other: derivatives of any
// order come for nothing.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using OptionalTensor = std::optional<Tensor>;

struct GatherPoints {
  static constexpr const char* kBackward = "torchvox::_gather_points_backward";
  static Tensor forward(const Tensor& features, const Tensor& idx, bool channels_first) {
    return torchvox::gather_points(features, idx, channels_first);
  }
};
struct GroupPoints {
  static constexpr const char* kBackward = "torchvox::_group_points_backward";
  static Tensor forward(const Tensor& features, const Tensor& idx, bool channels_first) {
    return torchvox::group_points(features, idx, channels_first);
  }
};

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
    return Op::forward(features, idx, channels_first);
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
    return {Op::forward(grads[0], ctx->get_saved_variables()[0],
                        ctx->saved_data["channels_first"].toBool()),
            Tensor(), Tensor(), Tensor()};
  }
};

Tensor gather_points(const Tensor& features, const Tensor& idx, bool channels_first) {
  check_gradient_limit_of("gather_points", features, channels_first ? 2 : 1, idx, 1, 1);
  if (wants_gradient(features)) return Gather<GatherPoints>::apply(features, idx, channels_first);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return torchvox::gather_points(features, idx, channels_first);
}

Tensor group_points(const Tensor& features, const Tensor& idx, bool channels_first,
                    const OptionalTensor& batch_offsets, const OptionalTensor& query_batch_offsets,
                    bool local_index) {
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
  if (!wants_gradient(features)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return torchvox::group_points(features, idx, channels_first, batch_offsets, query_batch_offsets,
                                  local_index);
  }
  const c10::SymInt k = idx.dim() > 1 ? idx.sym_size(-1) : c10::SymInt(1);
  if (clouds.packed()) {
    check_gradient_limit_of("group_points", features, 0, idx, 0, k);
    const Tensor rows = packed_rows("group_points", features, idx, channels_first, clouds);
    return torchvox::group_points(features.unsqueeze(0), rows).squeeze(0);
  }
  check_gradient_limit_of("group_points", features, channels_first ? 2 : 1, idx, 1, k);
  return Gather<GroupPoints>::apply(features, idx, channels_first);
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
  ops.autograd(TORCHVOX_OP(gather_points));
  ops.autograd(TORCHVOX_OP(group_points));
  ops.autograd("_gather_points_backward", backward<GatherPoints>);
  ops.autograd("_group_points_backward", backward<GroupPoints>);
}

}  // namespace
}  // namespace torchvox
