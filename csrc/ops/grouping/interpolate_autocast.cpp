// SPDX-License-Identifier: Apache-2.0
#include <torch/library.h>

#include "csrc/ops/core/autocast.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Weights may be float32 beside features of any type.
Tensor widened_weight(const Tensor& weight, const Tensor& features) {
  const bool agrees = !is_half(weight) || weight.scalar_type() == features.scalar_type();
  return agrees ? weight : weight.to(at::kFloat);
}

Tensor three_interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                         bool channels_first) {
  static const auto op = typed_op<decltype(three_interpolate)>("torchvox::three_interpolate");
  const BelowAutocast below_autocast;
  return op.call(features, idx, widened_weight(weight, features), channels_first);
}

Tensor three_interpolate_ragged(const Tensor& features, const Tensor& idx, const Tensor& weight,
                                const Tensor& ptr, const Tensor& query_ptr, bool local_index) {
  static const auto op =
      typed_op<decltype(three_interpolate_ragged)>("torchvox::three_interpolate_ragged");
  const BelowAutocast below_autocast;
  return op.call(features, idx, widened_weight(weight, features), ptr, query_ptr, local_index);
}

Tensor interpolation_weights(const Tensor& dist2, double eps, std::string_view weight) {
  static const auto op =
      typed_op<decltype(interpolation_weights)>("torchvox::interpolation_weights");
  const BelowAutocast below_autocast;
  return op.call(widened_half(dist2, at::kFloat), eps, weight);
}

Tensor interpolate_features(const Tensor& query, const Tensor& points, const Tensor& features,
                            double eps, std::string_view weight, const OptionalTensor& lengths,
                            const OptionalTensor& query_lengths) {
  static const auto op = typed_op<decltype(interpolate_features)>("torchvox::interpolate_features");
  const BelowAutocast below_autocast;
  const auto [q, p] = widened(query, points);
  return op.call(q, p, features, eps, weight, lengths, query_lengths);
}

void register_kernels(torch::Library& m) {
  m.impl("three_interpolate", three_interpolate);
  m.impl("three_interpolate_ragged", three_interpolate_ragged);
  m.impl("interpolation_weights", interpolation_weights);
  m.impl("interpolate_features", interpolate_features);
}

TORCH_LIBRARY_IMPL(torchvox, AutocastCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, AutocastCUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace torchvox
