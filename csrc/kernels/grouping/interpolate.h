// SPDX-License-Identifier: Apache-2.0
//
// Entry of three_interpolate, of the gradient of its weights and of the weights themselves. The
// gradient of the features is a segment sum.
#pragma once

#include <cmath>
#include <cstdint>

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"

namespace torchvox {

// Weights of the nearest neighbors of a query (PointNet++, equation 2): 1 / (d + eps), divided by
// their sum in index order. d is the distance or its square.
struct WeightRule {
  bool squared = false;
  double eps = 1e-8;
};

// Neighbors infinitely far off weigh nothing; where all are, all weights are 0.
inline constexpr int kNearest = 3;
struct InterpolationWeightsArgs {
  const void* dist2 = nullptr;  // [queries, 3]
  const void* grad = nullptr;  // [queries, 3], of the weights: `out` is then the gradient of dist2
  void* out = nullptr;  // [queries, 3]
  DType dtype = DType::kFloat;  // of all: kFloat or kDouble
  WeightRule rule;
  int64_t queries = 0;
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(InterpolationWeightsArgs);

// out[b, m] = sum of weight[b, m, j] * features[b, idx[b, m, j]] over j = 0, 1, 2, rounded as
// fma(w2, f2, fma(w0, f0, w1 * f1)) in fp32 (fp64 for fp64) and once more to the features' type. An
// index outside [0, rows) reads zeros.
struct InterpolateArgs {
  const void* features = nullptr;  // [clouds, rows, channels], or [clouds, channels, rows]
  DType dtype = DType::kFloat;
  IndexArray idx;  // [clouds, queries, 3]
  // [clouds, queries, 3], fp32 or of the features' type; with `from_dist2`, squared distances, fp32
  // or fp64, of which `rule` makes the weights in that type, rounded to fp32 unless features are
  // fp64.
  const void* weight = nullptr;
  DType weight_dtype = DType::kFloat;
  bool from_dist2 = false;
  WeightRule rule;
  void* out = nullptr;  // [clouds, queries, channels], or [clouds, channels, queries]
  int64_t clouds = 0;
  int64_t rows = 0;
  int64_t queries = 0;
  int64_t channels = 0;
  bool channels_first = false;
};

// grad_weight[b, m, j] = sum over channels of grad * feature: 32 sums, of the channels c, c + 32,
// .. for c < 32, by fma from +0, then the second half of the sums added to the first until one is
// left. 0 where the index is outside.
inline constexpr int kWeightSums = 32;
struct InterpolateWeightGradArgs {
  const void* grad = nullptr;  // as InterpolateArgs::out
  const void* features = nullptr;
  DType dtype = DType::kFloat;
  IndexArray idx;
  void* grad_weight = nullptr;  // [clouds, queries, 3]
  DType weight_dtype = DType::kFloat;
  int64_t clouds = 0;
  int64_t rows = 0;
  int64_t queries = 0;
  int64_t channels = 0;
  bool channels_first = false;
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(InterpolateArgs);
TORCHVOX_KERNEL_WITHOUT_WORKSPACE(InterpolateWeightGradArgs);

}  // namespace torchvox
