// SPDX-License-Identifier: Apache-2.0
//
// Log-odds of voxels as integers, in units of 1/1024.
#pragma once

#include "csrc/kernels/core/cloud_batch.h"

namespace torchvox {

inline constexpr int kLogOddsUnit = 1024;
inline constexpr int16_t kUnobserved = -32768;

// What a hit and a miss add, and between what they leave a voxel.
struct Sensor {
  int32_t hit = 0, miss = 0, clamp_min = 0, clamp_max = 0;

  TORCHVOX_HD int16_t clamped(int64_t log_odds) const {
    return static_cast<int16_t>(clamp_index(log_odds, clamp_min, clamp_max));
  }
};

}  // namespace torchvox
