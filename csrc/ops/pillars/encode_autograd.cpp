// SPDX-License-Identifier: Apache-2.0
//
// The forward remembers who won each channel of each pillar; the gradients of the layer gather
// from there. The points have none: exact batch norm rests on their moments being constants.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/pillars/checks.h"

namespace torchvox {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using EncodeBackward = std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&, const Tensor&,
                                                  const Tensor&, const Tensor&,
                                                  c10::ArrayRef<double>, c10::ArrayRef<double>,
                                                  at::ScalarType, int64_t, bool);

class PillarEncode : public torch::autograd::Function<PillarEncode> {
 public:
  // `train` is the op that remembers.
  static Tensor forward(AutogradContext* ctx, const Tensor& weight, const Tensor& /*bias*/,
                        const Tensor& points, const Tensor& indices,
                        c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range,
                        int64_t center_axes, bool legacy,
                        const std::function<std::tuple<Tensor, Tensor, Tensor>()>& train) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [canvas, mean, arg] = train();
    ctx->save_for_backward({mean, arg, points, indices});
    ctx->saved_data["voxel_size"] = voxel_size.vec();
    ctx->saved_data["range"] = range.vec();
    ctx->saved_data["dtype"] = static_cast<int64_t>(weight.scalar_type());
    ctx->saved_data["center_axes"] = center_axes;
    ctx->saved_data["legacy"] = legacy;
    ctx->set_materialize_grads(false);
    return canvas;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    static const auto op = typed_op<EncodeBackward>("torchvox::_pillar_encode_backward");
    variable_list out(9);
    if (!grads[0].defined()) return out;
    const variable_list saved = ctx->get_saved_variables();
    auto [grad_weight, grad_bias] = op.call(
        grads[0], saved[0], saved[1], saved[2], saved[3],
        ctx->saved_data["voxel_size"].toDoubleVector(), ctx->saved_data["range"].toDoubleVector(),
        static_cast<at::ScalarType>(ctx->saved_data["dtype"].toInt()),
        ctx->saved_data["center_axes"].toInt(), ctx->saved_data["legacy"].toBool());
    if (ctx->needs_input_grad(0)) out[0] = grad_weight;
    if (ctx->needs_input_grad(1)) out[1] = grad_bias;
    return out;
  }
};

Tensor pillar_encode(const Tensor& points, const Tensor& indices, const Tensor& num_points,
                     const Tensor& point_voxel, const Tensor& point_slot, const Tensor& weight,
                     const Tensor& bias, c10::ArrayRef<double> voxel_size,
                     c10::ArrayRef<double> range, int64_t max_points, c10::SymInt batch_size,
                     int64_t center_axes, bool legacy, std::string_view pad_semantics,
                     std::optional<at::ScalarType> out_dtype) {
  TORCH_CHECK_NOT_IMPLEMENTED(!wants_gradient(points),
                              "pillar_encode: points have no gradient; detach them");
  const auto call = [&](const auto& op) {
    return op(points, indices, num_points, point_voxel, point_slot, weight, bias, voxel_size, range,
              max_points, batch_size, center_axes, legacy, pad_semantics, out_dtype);
  };
  if (wants_gradient(weight) || wants_gradient(bias)) {
    static const auto train_op = typed_op<PillarEncodeTrain>("torchvox::_pillar_encode_train");
    const auto train = [&](auto&&... arguments) { return train_op.call(arguments...); };
    return PillarEncode::apply(weight, bias, points, indices, voxel_size, range, center_axes,
                               legacy, [&] { return call(train); });
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return call(torchvox::pillar_encode);
}

TORCHVOX_REGISTER_OPS(ops) { ops.autograd(TORCHVOX_OP(pillar_encode)); }

}  // namespace
}  // namespace torchvox
