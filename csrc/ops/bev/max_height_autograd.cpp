// SPDX-License-Identifier: Apache-2.0
//
// A cell's gradient goes to the z of its top point. The plain op has no top_index, so when a
// gradient is wanted its indexed variant runs in its place.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Plain = std::tuple<Tensor, Tensor>(const Tensor&, c10::ArrayRef<double>, at::IntArrayRef,
                                         const OptionalTensor&, const OptionalTensor&,
                                         std::string_view, std::optional<at::ScalarType>, double,
                                         int64_t);
using Indexed = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, c10::ArrayRef<double>,
                                                   at::IntArrayRef, const OptionalTensor&,
                                                   const OptionalTensor&, std::string_view,
                                                   std::optional<at::ScalarType>, double, int64_t);
using Backward = Tensor(const Tensor&, const Tensor&, const Tensor&, c10::ArrayRef<double>,
                        at::IntArrayRef, const OptionalTensor&, const OptionalTensor&,
                        std::string_view);

const auto& plain_op() {
  static const auto op = typed_op<Plain>("torchvox::bev_max_height");
  return op;
}
const auto& indexed_op() {
  static const auto op = typed_op<Indexed>("torchvox::bev_max_height_with_index");
  return op;
}
const auto& backward_op() {
  static const auto op = typed_op<Backward>("torchvox::_bev_max_height_backward");
  return op;
}

class BevMaxHeight : public torch::autograd::Function<BevMaxHeight> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& points,
                               c10::ArrayRef<double> range, at::IntArrayRef size,
                               const OptionalTensor& batch_offsets, const OptionalTensor& num_valid,
                               std::string_view orientation,
                               std::optional<at::ScalarType> out_dtype, double fill,
                               int64_t lowest_code) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [height, top_index, counts] = indexed_op().call(
        points, range, size, batch_offsets, num_valid, orientation, out_dtype, fill, lowest_code);
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
    return {grad_points, {}, {}, {}, {}, {}, {}, {}, {}};
  }
};

std::tuple<Tensor, Tensor> bev_max_height(const Tensor& points, c10::ArrayRef<double> range,
                                          at::IntArrayRef size, const OptionalTensor& batch_offsets,
                                          const OptionalTensor& num_valid,
                                          std::string_view orientation,
                                          std::optional<at::ScalarType> out_dtype, double fill,
                                          int64_t lowest_code) {
  if (wants_gradient(points)) {
    const auto out = BevMaxHeight::apply(points, range, size, batch_offsets, num_valid, orientation,
                                         out_dtype, fill, lowest_code);
    return {out[0], out[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return plain_op().call(points, range, size, batch_offsets, num_valid, orientation, out_dtype,
                         fill, lowest_code);
}

std::tuple<Tensor, Tensor, Tensor> bev_max_height_with_index(
    const Tensor& points, c10::ArrayRef<double> range, at::IntArrayRef size,
    const OptionalTensor& batch_offsets, const OptionalTensor& num_valid,
    std::string_view orientation, std::optional<at::ScalarType> out_dtype, double fill,
    int64_t lowest_code) {
  if (wants_gradient(points)) {
    const auto out = BevMaxHeight::apply(points, range, size, batch_offsets, num_valid, orientation,
                                         out_dtype, fill, lowest_code);
    return {out[0], out[1], out[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return indexed_op().call(points, range, size, batch_offsets, num_valid, orientation, out_dtype,
                           fill, lowest_code);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd("bev_max_height", bev_max_height);
  ops.autograd("bev_max_height_with_index", bev_max_height_with_index);
}

}  // namespace
}  // namespace torchvox
