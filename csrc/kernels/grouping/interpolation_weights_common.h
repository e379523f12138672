// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>

#include "csrc/kernels/grouping/interpolation_weights.h"

namespace torchvox {

// Both are single IEEE operations on the host and on the device.
TORCHVOX_HD float root(float x) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}
TORCHVOX_HD double root(double x) {
#ifdef __CUDA_ARCH__
  return __dsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

template <class T>
struct NearestWeights {
  T distance[kNearest];
  T inverse[kNearest];  // 1 / (d + eps)
  T sum;
  T weight[kNearest];

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

// The gradient of dist2[j], from those of the weights. A root has none at 0: it is taken as 0
// there. Summed as differences: grad[j] less the mean gradient would cancel where one weight is all
// but 1.
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

}  // namespace torchvox
