// SPDX-License-Identifier: Apache-2.0
#include <torch/library.h>

#include <vector>

#include "csrc/ops/core/autocast.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Outputs = std::tuple<Tensor, Tensor, Tensor>;

Outputs ball_query(const Tensor& points, const Tensor& query, double radius, c10::SymInt k,
                   std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
                   std::string_view fill, std::string_view dist_order,
                   const OptionalTensor& lengths, const OptionalTensor& query_lengths) {
  static const auto op = typed_op<decltype(ball_query)>("torchvox::ball_query");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  return op.call(p, q, radius, std::move(k), radius2, min_radius, core_dist2, closed, fill,
                 dist_order, lengths, query_lengths);
}

Outputs ball_query_ragged(const Tensor& points, const Tensor& query, const Tensor& ptr,
                          const Tensor& query_ptr, double radius, c10::SymInt k,
                          std::optional<double> radius2, double min_radius, double core_dist2,
                          bool closed, std::string_view fill, std::string_view dist_order,
                          bool local_index) {
  static const auto op = typed_op<decltype(ball_query_ragged)>("torchvox::ball_query_ragged");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  return op.call(p, q, ptr, query_ptr, radius, std::move(k), radius2, min_radius, core_dist2,
                 closed, fill, dist_order, local_index);
}

Outputs query_and_group(const Tensor& points, const Tensor& query, const OptionalTensor& features,
                        c10::ArrayRef<double> radii, c10::SymIntArrayRef ks, bool use_xyz,
                        bool normalize_xyz, bool features_first, bool closed,
                        std::string_view dist_order, const OptionalTensor& lengths,
                        const OptionalTensor& query_lengths) {
  static const auto op = typed_op<decltype(query_and_group)>("torchvox::query_and_group");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  return op.call(p, q, features, radii, ks, use_xyz, normalize_xyz, features_first, closed,
                 dist_order, lengths, query_lengths);
}

// Coordinates agree with each other; features, weights and biases with each other.
Tensor group_mlp_max(const Tensor& points, const Tensor& query, const OptionalTensor& features,
                     const Tensor& idx, const Tensor& count, at::TensorList weights,
                     at::TensorList biases, bool use_xyz, std::optional<double> normalize_radius,
                     bool features_first) {
  static const auto op = typed_op<decltype(group_mlp_max)>("torchvox::group_mlp_max");
  const BelowAutocast below_autocast;
  const auto [p, q] = widened(points, query);
  std::vector<Tensor> layers(weights.begin(), weights.end());
  layers.insert(layers.end(), biases.begin(), biases.end());
  if (features) layers.push_back(*features);
  if (!layers.empty()) widen(layers);
  const at::TensorList all(layers);
  return op.call(p, q, features ? OptionalTensor(layers.back()) : std::nullopt, idx, count,
                 all.slice(0, weights.size()), all.slice(weights.size(), biases.size()), use_xyz,
                 normalize_radius, features_first);
}

void register_kernels(torch::Library& m) {
  m.impl("ball_query", ball_query);
  m.impl("ball_query_ragged", ball_query_ragged);
  m.impl("query_and_group", query_and_group);
  m.impl("group_mlp_max", group_mlp_max);
}

TORCH_LIBRARY_IMPL(torchvox, AutocastCPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torchvox, AutocastCUDA, m) { register_kernels(m); }

}  // namespace
}  // namespace torchvox
