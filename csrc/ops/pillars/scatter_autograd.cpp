// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Scatter = Tensor(const Tensor&, const Tensor&, c10::SymInt, c10::IntArrayRef);

class PillarScatter : public torch::autograd::Function<PillarScatter> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& feats, const Tensor& indices,
                        const c10::SymInt& batch_size, c10::IntArrayRef size) {
    static const auto op = typed_op<Scatter>("torchvox::pillar_scatter");
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({indices});
    ctx->set_materialize_grads(false);
    return op.call(feats, indices, batch_size, size);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op =
        typed_op<Tensor(const Tensor&, const Tensor&)>("torchvox::_pillar_scatter_backward");
    variable_list out(4);
    if (grads[0].defined()) out[0] = op.call(grads[0], ctx->get_saved_variables()[0]);
    return out;
  }
};

Tensor pillar_scatter_autograd(const Tensor& feats, const Tensor& indices, c10::SymInt batch_size,
                               c10::IntArrayRef size) {
  if (wants_gradient(feats)) return PillarScatter::apply(feats, indices, batch_size, size);
  static const auto op = typed_op<Scatter>("torchvox::pillar_scatter");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op.call(feats, indices, std::move(batch_size), size);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd("pillar_scatter", pillar_scatter_autograd);
  ops.autograd("_pillar_scatter_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
