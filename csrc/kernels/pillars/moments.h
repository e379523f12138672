// SPDX-License-Identifier: Apache-2.0
//
// Entry of pillar_moments, and the rule of its sums.
#pragma once

#include "csrc/kernels/pillars/map.h"

namespace torchvox {

// The upper triangle, row by row, of the sum of g g^T over the points stored in pillars, g = (1,
// decorated point). The first entry counts the points, or all slots of all pillars where empty ones
// count.
struct PillarMomentsArgs {
  PillarMap map;
  double* moments = nullptr;  // [entries()]

  TORCHVOX_HD int64_t size() const { return map.decorated() + 1; }
  TORCHVOX_HD int64_t entries() const { return size() * (size() + 1) / 2; }
};

// Sums are taken over a tree that depends on their number alone: 32 neighbors left to right, from
// +0, then 32 such sums, and so on.
inline constexpr int64_t kTreeWidth = 32;

// a * b added to a sum in double. A product of two floats is exact there.
TORCHVOX_HD double plus_product(double sum, float a, float b) {
#ifdef __CUDA_ARCH__
  return fma_rn(static_cast<double>(a), static_cast<double>(b), sum);
#else
  return sum + static_cast<double>(a) * static_cast<double>(b);
#endif
}
TORCHVOX_HD double plus_product(double sum, double a, double b) { return sum + a * b; }

TORCHVOX_KERNEL(PillarMomentsArgs);

}  // namespace torchvox
