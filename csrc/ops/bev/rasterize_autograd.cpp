// SPDX-License-Identifier: Apache-2.0
//
// The gradient finds each cell's top point and count again from the points: cheaper to compute than
// to keep, and the forward op needs no second form.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Channels = torch::List<std::string>;
using Outputs = std::tuple<Tensor, Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& backward_op() {
  static const auto op = typed_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, c10::ArrayRef<double>, at::IntArrayRef, Channels,
      const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, std::string_view)>(
      "torchvox::_bev_rasterize_backward");
  return op;
}

class BevRasterize : public torch::autograd::Function<BevRasterize> {
 public:
  // `rasterize` is the op itself.
  static variable_list forward(AutogradContext* ctx, const Tensor& points,
                               const OptionalTensor& features, c10::ArrayRef<double> range,
                               at::IntArrayRef size, const Channels& channels,
                               const OptionalTensor& batch_offsets, const OptionalTensor& num_valid,
                               std::string_view orientation,
                               const std::function<Outputs()>& rasterize) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [image, counts] = rasterize();
    ctx->save_for_backward({points, features.value_or(Tensor()), batch_offsets.value_or(Tensor()),
                            num_valid.value_or(Tensor())});
    ctx->saved_data["range"] = range.vec();
    ctx->saved_data["size"] = size.vec();
    ctx->saved_data["channels"] = channels;
    ctx->saved_data["orientation"] = std::string(orientation);
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({counts});
    return {image, counts};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list out(9);
    if (!grads[0].defined()) return out;
    const variable_list saved = ctx->get_saved_variables();
    auto [grad_points, grad_features] = backward_op().call(
        grads[0], saved[0], ctx->saved_data["range"].toDoubleVector(),
        ctx->saved_data["size"].toIntVector(),
        c10::impl::toTypedList<std::string>(ctx->saved_data["channels"].toList()),
        defined(saved[1]), defined(saved[2]), defined(saved[3]),
        ctx->saved_data["orientation"].toStringRef());
    out[0] = grad_points;
    if (saved[1].defined()) out[1] = grad_features;
    return out;
  }
};

Outputs bev_rasterize(const Tensor& points, c10::ArrayRef<double> range, at::IntArrayRef size,
                      Channels channels, const OptionalTensor& features,
                      const OptionalTensor& batch_offsets, const OptionalTensor& num_valid,
                      std::string_view orientation, double fill, int64_t density_base) {
  const auto rasterize = [&] {
    return torchvox::bev_rasterize(points, range, size, channels, features, batch_offsets,
                                   num_valid, orientation, fill, density_base);
  };
  if (wants_gradient(points) || (features && wants_gradient(*features))) {
    const auto out = BevRasterize::apply(points, features, range, size, channels, batch_offsets,
                                         num_valid, orientation, rasterize);
    return {out[0], out[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return rasterize();
}

TORCHVOX_REGISTER_OPS(ops) { ops.autograd(TORCHVOX_OP(bev_rasterize)); }

}  // namespace
}  // namespace torchvox
