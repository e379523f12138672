// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class PillarScatter : public torch::autograd::Function<PillarScatter> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& feats, const Tensor& indices,
                        const c10::SymInt& batch_size, c10::IntArrayRef size) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({indices});
    ctx->set_materialize_grads(false);
    return torchvox::pillar_scatter(feats, indices, batch_size, size);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op =
        typed_op<Tensor(const Tensor&, const Tensor&)>("torchvox::_pillar_scatter_backward");
    variable_list out(4);
    if (grads[0].defined()) out[0] = op.call(grads[0], ctx->get_saved_variables()[0]);
    return out;
  }
};

Tensor pillar_scatter(const Tensor& feats, const Tensor& indices, c10::SymInt batch_size,
                      c10::IntArrayRef size) {
  if (wants_gradient(feats)) return PillarScatter::apply(feats, indices, batch_size, size);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return torchvox::pillar_scatter(feats, indices, std::move(batch_size), size);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(pillar_scatter));
  ops.autograd("_pillar_scatter_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
