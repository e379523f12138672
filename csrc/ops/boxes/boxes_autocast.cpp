// SPDX-License-Identifier: Apache-2.0
//
// Under autocast boxes and scores may come out of a layer in half precision. They are widened to
// float32, and two arguments that must agree to a type that holds both.
#include <torch/library.h>

#include "csrc/ops/core/autocast.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor in_float(const Tensor& tensor) { return widened_half(tensor, at::kFloat); }

Tensor rotated_iou(const Tensor& a_in, const Tensor& b_in, std::string_view mode, bool paired) {
  static const auto op = typed_op<decltype(rotated_iou)>("torchvox::rotated_iou");
  const BelowAutocast below_autocast;
  const auto [a, b] = widened(in_float(a_in), in_float(b_in));
  return op.call(a, b, mode, paired);
}

std::tuple<Tensor, Tensor> rotated_nms(const Tensor& boxes, const Tensor& scores, double threshold,
                                       c10::SymInt max_out, const OptionalTensor& group,
                                       const OptionalTensor& lengths, std::string_view mode) {
  static const auto op = typed_op<decltype(rotated_nms)>("torchvox::rotated_nms");
  const BelowAutocast below_autocast;
  return op.call(in_float(boxes), in_float(scores), threshold, std::move(max_out), group, lengths,
                 mode);
}

Tensor points_in_boxes(const Tensor& points_in, const Tensor& boxes_in, std::string_view mode,
                       double margin, const OptionalTensor& lengths,
                       const OptionalTensor& box_lengths) {
  static const auto op = typed_op<decltype(points_in_boxes)>("torchvox::points_in_boxes");
  const BelowAutocast below_autocast;
  const auto [points, boxes] = widened(in_float(points_in), in_float(boxes_in));
  return op.call(points, boxes, mode, margin, lengths, box_lengths);
}

void register_kernels(torch::Library& m) {
  m.impl("rotated_iou", rotated_iou);
  m.impl("rotated_nms", rotated_nms);
  m.impl("points_in_boxes", points_in_boxes);
}

TORCH_LIBRARY_IMPL(torchvox, AutocastCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, AutocastCUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace torchvox
