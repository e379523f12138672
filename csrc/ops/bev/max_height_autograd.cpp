// SPDX-License-Identifier: Apache-2.0
//
// A cell's gradient goes to the z of its top point. The plain op has no top_index, so when a
// gradient is wanted its indexed variant runs in its place.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Indexed = std::tuple<Tensor, Tensor, Tensor>;

const auto& backward_op() {
  static const auto op =
      typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&, c10::ArrayRef<double>,
                      at::IntArrayRef, const OptionalTensor&, const OptionalTensor&,
                      std::string_view)>("torchvox::_bev_max_height_backward");
  return op;
}

class BevMaxHeight : public torch::autograd::Function<BevMaxHeight> {
 public:
  // `indexed` is the indexed variant.
  static variable_list forward(AutogradContext* ctx, const Tensor& points,
                               c10::ArrayRef<double> range, at::IntArrayRef size,
                               const OptionalTensor& batch_offsets, const OptionalTensor& num_valid,
                               std::string_view orientation,
                               const std::function<Indexed()>& indexed) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [height, top_index, counts] = indexed();
    ctx->save_for_backward(
        {points, top_index, batch_offsets.value_or(Tensor()), num_valid.value_or(Tensor())});
    ctx->saved_data["range"] = range.vec();
    ctx->saved_data["size"] = size.vec();
    ctx->saved_data["orientation"] = std::string(orientation);
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable(height.is_floating_point()
                                     ? variable_list{top_index, counts}
                                     : variable_list{height, top_index, counts});
    return {height, top_index, counts};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    Tensor grad_points;
    if (grads[0].defined() && ctx->needs_input_grad(0)) {
      const variable_list saved = ctx->get_saved_variables();
      grad_points = backward_op().call(
          grads[0], saved[1], saved[0], ctx->saved_data["range"].toDoubleVector(),
          ctx->saved_data["size"].toIntVector(), defined(saved[2]), defined(saved[3]),
          ctx->saved_data["orientation"].toStringRef());
    }
    return {grad_points, {}, {}, {}, {}, {}, {}};
  }
};

Indexed bev_max_height_with_index(const Tensor& points, c10::ArrayRef<double> range,
                                  at::IntArrayRef size, const OptionalTensor& batch_offsets,
                                  const OptionalTensor& num_valid, std::string_view orientation,
                                  std::optional<at::ScalarType> out_dtype, double fill,
                                  int64_t lowest_code) {
  const auto indexed = [&] {
    return torchvox::bev_max_height_with_index(points, range, size, batch_offsets, num_valid,
                                               orientation, out_dtype, fill, lowest_code);
  };
  if (wants_gradient(points)) {
    const auto out =
        BevMaxHeight::apply(points, range, size, batch_offsets, num_valid, orientation, indexed);
    return {out[0], out[1], out[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return indexed();
}

template <class... Options>
std::tuple<Tensor, Tensor> bev_max_height(const Tensor& points, Options... options) {
  if (wants_gradient(points)) {
    const auto [height, top_index, counts] = bev_max_height_with_index(points, options...);
    return {height, counts};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return torchvox::bev_max_height(points, options...);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(bev_max_height));
  ops.autograd(TORCHVOX_OP(bev_max_height_with_index));
}

}  // namespace
}  // namespace torchvox
