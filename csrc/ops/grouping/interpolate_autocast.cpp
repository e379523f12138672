// SPDX-License-Identifier: Apache-2.0
//
// Under autocast one of two arguments that must agree may come out of a layer in half precision:
// query and points are widened to a type that holds both, weights to float32. Features, and
// arguments that agree, stay as they are.
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

Tensor three_interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                         bool channels_first) {
  static const auto op = typed_op<decltype(three_interpolate)>("torchvox::three_interpolate");
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const bool is_half = weight.scalar_type() == at::kHalf || weight.scalar_type() == at::kBFloat16;
  const bool agrees = !is_half || weight.scalar_type() == features.scalar_type();
  return op.call(features, idx, agrees ? weight : weight.to(at::kFloat), channels_first);
}

Tensor interpolate_features(const Tensor& query, const Tensor& points, const Tensor& features,
                            double eps, std::string_view weight, const OptionalTensor& lengths,
                            const OptionalTensor& query_lengths) {
  static const auto op = typed_op<decltype(interpolate_features)>("torchvox::interpolate_features");
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  if (!query.is_floating_point() || !points.is_floating_point()) {
    return op.call(query, points, features, eps, weight, lengths, query_lengths);
  }
  const at::ScalarType type = c10::promoteTypes(query.scalar_type(), points.scalar_type());
  return op.call(query.to(type), points.to(type), features, eps, weight, lengths, query_lengths);
}

void register_kernels(torch::Library& m) {
  m.impl("three_interpolate", three_interpolate);
  m.impl("interpolate_features", interpolate_features);
}

TORCH_LIBRARY_IMPL(torchvox, AutocastCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, AutocastCUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace torchvox
