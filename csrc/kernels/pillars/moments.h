// SPDX-License-Identifier: Apache-2.0
//
// Entry of pillar_moments.
#pragma once

#include "csrc/kernels/core/tree_sum.h"
#include "csrc/kernels/pillars/map.h"

namespace torchvox {

// The upper triangle, row by row, of the sum of g g^T over the points stored in pillars, where g is
// (1, decorated point). The first entry counts the points, or all slots of all pillars where empty
// slots count as points.
struct PillarMomentsArgs {
  PillarMap map;
  double* moments = nullptr;  // [entries()]

  TORCHVOX_HD int64_t size() const { return map.decorated() + 1; }
  TORCHVOX_HD int64_t entries() const { return size() * (size() + 1) / 2; }
};

TORCHVOX_KERNEL(PillarMomentsArgs);

}  // namespace torchvox
