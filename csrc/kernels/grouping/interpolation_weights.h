// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// Weights of the nearest neighbours of a query (PointNet++, equation 2): 1 / (d + eps), divided by
// their sum in index order. d is the distance or its square.
struct WeightRule {
  bool squared = false;
  double eps = 1e-8;
};

// Neighbours infinitely far off weigh nothing; where all are, all weights are 0.
inline constexpr int kNearest = 3;
struct InterpolationWeightsArgs {
  const void* dist2 = nullptr;  // [queries, 3]
  const void* grad = nullptr;  // [queries, 3], of the weights: `out` is then the gradient of dist2
  void* out = nullptr;  // [queries, 3]
  DType dtype = DType::kFloat;  // of all: kFloat or kDouble
  WeightRule rule;
  int64_t queries = 0;
};

TORCHVOX_EXPORT int64_t workspace_bytes(const InterpolationWeightsArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const InterpolationWeightsArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const InterpolationWeightsArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
