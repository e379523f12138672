// SPDX-License-Identifier: Apache-2.0
//
// Entry of three_interpolate, of the gradient of its weights and of the weights themselves. The
// gradient of the features is a segment sum.
#pragma once

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/core/map.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

// Weights of the nearest neighbors of a query (PointNet++, equation 2): 1 / (d + eps), divided by
// their sum in index order. d is the distance or its square.
struct WeightRule {
  bool squared = false;
  double eps = 1e-8;
};

inline constexpr int kNearest = 3;

// Infinitely distant neighbors have weight 0; if all are, all weights are 0.
struct InterpolationWeightsArgs {
  const void* dist2 = nullptr;  // [queries, 3]
  const void* grad = nullptr;  // [queries, 3], gradient of the weights: `out` is that of dist2
  void* out = nullptr;  // [queries, 3]
  DType dtype = DType::kFloat;  // of all three: kFloat or kDouble
  WeightRule rule;
  int64_t queries = 0;
};

// out[b, m] = sum of weight[b, m, j] * features[b, idx[b, m, j]] over j = 0, 1, 2, rounded as
// fma(w2, f2, fma(w0, f0, w1 * f1)) in fp32 (fp64 for fp64) and once more to the features' type. An
// index outside [0, rows) reads zeros.
struct InterpolateArgs {
  const void* features = nullptr;  // [clouds, rows, channels], or [clouds, channels, rows]
  DType dtype = DType::kFloat;
  IndexArray idx;  // [clouds, queries, 3]
  // [clouds, queries, 3], fp32 or the features' type. With `from_dist2`: squared distances, fp32 or
  // fp64, from which `rule` computes the weights in that type; rounded to fp32 unless features are
  // fp64.
  const void* weight = nullptr;
  DType weight_dtype = DType::kFloat;
  bool from_dist2 = false;
  WeightRule rule;
  void* out = nullptr;  // [clouds, queries, channels], or [clouds, channels, queries]
  int64_t clouds = 0, rows = 0, queries = 0, channels = 0;
  bool channels_first = false;
};

// grad_weight[b, m, j] = sum over channels of grad * feature: 32 sums, one each of the channels c,
// c + 32, .. for c < 32, by fma from +0; then the second half of the sums is added to the first
// until one is left. 0 if the index is outside.
inline constexpr int kWeightSums = 32;
struct InterpolateWeightGradArgs {
  const void* grad = nullptr;  // as InterpolateArgs::out
  const void* features = nullptr;
  DType dtype = DType::kFloat;
  IndexArray idx;
  void* grad_weight = nullptr;  // [clouds, queries, 3]
  DType weight_dtype = DType::kFloat;
  int64_t clouds = 0, rows = 0, queries = 0, channels = 0;
  bool channels_first = false;
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(InterpolateArgs);
TORCHVOX_KERNEL_WITHOUT_WORKSPACE(InterpolateWeightGradArgs);

inline const PlanOverride interpolate_cpu_plan{"interpolate_cpu"};  // see run_vectorized()

// The weights of one query, and what their gradient needs again.
template <class T>
struct NearestWeights {
  T distance[kNearest];
  T inverse[kNearest];  // 1 / (d + eps)
  T sum, weight[kNearest];

  TORCHVOX_HD NearestWeights(const T* dist2, const WeightRule& rule) {
    const T eps = static_cast<T>(rule.eps);
    for (int j = 0; j < kNearest; ++j) {
      distance[j] = rule.squared ? dist2[j] : root(dist2[j]);
      inverse[j] = T(1) / (distance[j] + eps);
    }
    sum = (inverse[0] + inverse[1]) + inverse[2];
    for (int j = 0; j < kNearest; ++j) weight[j] = sum > 0 ? inverse[j] / sum : T(0);
  }
};

// The gradient of dist2[j], from those of the weights. That of a square root is taken as 0 at 0.
// Summed as differences: grad[j] minus the mean gradient would cancel where one weight is nearly 1.
template <class T>
TORCHVOX_HD T weight_gradient(const NearestWeights<T>& w, const T* grad, int j, bool squared) {
  if (!(w.sum > 0) || w.inverse[j] == 0 || (!squared && w.distance[j] == 0)) return T(0);
  const T total = ((grad[j] - grad[0]) * w.weight[0] + (grad[j] - grad[1]) * w.weight[1]) +
      (grad[j] - grad[2]) * w.weight[2];
  const T of_inverse = total / w.sum;
  const T of_distance = -(of_inverse * w.inverse[j]) * w.inverse[j];
  return squared ? of_distance : of_distance / (w.distance[j] + w.distance[j]);
}

template <class T>
TORCHVOX_HD void weights_of_query(const InterpolationWeightsArgs& args, int64_t query) {
  const int64_t first = query * kNearest;
  const T* const grad = static_cast<const T*>(args.grad) + (args.grad ? first : 0);
  const NearestWeights<T> w(static_cast<const T*>(args.dist2) + first, args.rule);
  for (int j = 0; j < kNearest; ++j) {
    static_cast<T*>(args.out)[first + j] =
        quiet(args.grad ? weight_gradient(w, grad, j, args.rule.squared) : w.weight[j]);
  }
}
TORCHVOX_TYPED_MAP(InterpolationWeightsArgs, with_compute_type, args.dtype, weights_of_query,
                   args.queries, 512, 256);

// The rows and weights of a query, which is numbered among those of all clouds.
template <class Sum>
struct Nearest {
  Sum weight[kNearest];
  int64_t row[kNearest];  // among all clouds, -1 where the index is outside

  TORCHVOX_HD Nearest(const InterpolateArgs& args, int64_t query) {
    const int64_t cloud = query / args.queries;
    for (int j = 0; j < kNearest; ++j) {
      const int64_t index = args.idx[query * kNearest + j];
      row[j] = index >= 0 && index < args.rows ? cloud * args.rows + index : -1;
    }
    if (args.from_dist2 && args.weight_dtype == DType::kDouble) {
      make_weights<double>(args, query);
    } else if (args.from_dist2) {
      make_weights<float>(args, query);
    } else {
      for (int j = 0; j < kNearest; ++j) {
        weight[j] = load_as<Sum>(args.weight, args.weight_dtype, query * kNearest + j);
      }
    }
  }

 private:
  template <class Distance>
  TORCHVOX_HD void make_weights(const InterpolateArgs& args, int64_t query) {
    const auto* const dist2 = static_cast<const Distance*>(args.weight) + query * kNearest;
    const NearestWeights<Distance> weights(dist2, args.rule);
    for (int j = 0; j < kNearest; ++j) weight[j] = static_cast<Sum>(weights.weight[j]);
  }
};

template <class Sum>
TORCHVOX_HD Sum interpolated(const Sum* weight, const Sum* feature) {
  return quiet(
      fma_rn(weight[2], feature[2], fma_rn(weight[0], feature[0], weight[1] * feature[1])));
}

// The element of channel c of a row (or query) numbered among those of all clouds, `per_cloud` in
// each.
TORCHVOX_HD int64_t element_of(bool channels_first, int64_t row, int64_t c, int64_t per_cloud,
                               int64_t channels) {
  if (!channels_first) return row * channels + c;
  const int64_t cloud = row / per_cloud;
  return (cloud * channels + c) * per_cloud + (row - cloud * per_cloud);
}

// Writes channel c of a query.
template <class T>
TORCHVOX_HD void interpolate_element(const InterpolateArgs& args,
                                     const Nearest<compute_t<T>>& nearest, int64_t query,
                                     int64_t c) {
  using Sum = compute_t<T>;
  Sum feature[kNearest] = {};
  for (int j = 0; j < kNearest; ++j) {
    if (nearest.row[j] < 0) continue;
    const int64_t at = element_of(args.channels_first, nearest.row[j], c, args.rows, args.channels);
    feature[j] = widen(static_cast<const T*>(args.features)[at]);
  }
  const int64_t to = element_of(args.channels_first, query, c, args.queries, args.channels);
  static_cast<T*>(args.out)[to] = narrow<T>(interpolated(nearest.weight, feature));
}

// The sum of the channels c, c + kWeightSums, .. of slot i.
template <class T>
TORCHVOX_HD compute_t<T> weight_partial(const InterpolateWeightGradArgs& args, int64_t i,
                                        int64_t c) {
  using Sum = compute_t<T>;
  const int64_t query = i / kNearest, index = args.idx[i];
  if (index < 0 || index >= args.rows) return 0;
  const int64_t row = query / args.queries * args.rows + index;
  Sum sum = 0;
  for (; c < args.channels; c += kWeightSums) {
    const int64_t from = element_of(args.channels_first, row, c, args.rows, args.channels);
    const int64_t to = element_of(args.channels_first, query, c, args.queries, args.channels);
    sum = fma_rn(Sum(widen(static_cast<const T*>(args.grad)[to])),
                 Sum(widen(static_cast<const T*>(args.features)[from])), sum);
  }
  return sum;
}

}  // namespace torchvox
