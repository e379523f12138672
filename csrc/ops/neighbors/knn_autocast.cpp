// SPDX-License-Identifier: Apache-2.0
#include <torch/library.h>

#include "csrc/ops/core/autocast.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Distances = std::tuple<Tensor, Tensor>;

Distances knn(const Tensor& points, const Tensor& query, c10::SymInt k, int64_t norm,
              std::string_view dist_order, const OptionalTensor& lengths,
              const OptionalTensor& query_lengths) {
  static const auto op = typed_op<decltype(knn)>("torchvox::knn");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  return op.call(p, q, std::move(k), norm, dist_order, lengths, query_lengths);
}

Distances knn_ragged(const Tensor& points, const Tensor& query, const Tensor& ptr,
                     const Tensor& query_ptr, c10::SymInt k, int64_t norm,
                     std::string_view dist_order, bool local_index) {
  static const auto op = typed_op<decltype(knn_ragged)>("torchvox::knn_ragged");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  return op.call(p, q, ptr, query_ptr, std::move(k), norm, dist_order, local_index);
}

Distances three_nn(const Tensor& query, const Tensor& points, std::string_view dist_order,
                   const OptionalTensor& lengths, const OptionalTensor& query_lengths) {
  static const auto op = typed_op<decltype(three_nn)>("torchvox::three_nn");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  return op.call(q, p, dist_order, lengths, query_lengths);
}

Distances three_nn_ragged(const Tensor& query, const Tensor& points, const Tensor& query_ptr,
                          const Tensor& ptr, std::string_view dist_order, bool local_index) {
  static const auto op = typed_op<decltype(three_nn_ragged)>("torchvox::three_nn_ragged");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  return op.call(q, p, query_ptr, ptr, dist_order, local_index);
}

void register_kernels(torch::Library& m) {
  m.impl("knn", knn);
  m.impl("knn_ragged", knn_ragged);
  m.impl("three_nn", three_nn);
  m.impl("three_nn_ragged", three_nn_ragged);
}

TORCH_LIBRARY_IMPL(torchvox, AutocastCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, AutocastCUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace torchvox
