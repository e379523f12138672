// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_extract: sort the regions in use by key; count their voxels that are wanted;
// sum; write those that fit.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/occupancy/state.h"

namespace torchvox {

enum class OccupancySelect { kOccupied, kFree, kObserved };

struct OccupancyExtractArgs {
  OccupancyState state;
  int64_t max_out = 0;
  OccupancySelect select = OccupancySelect::kOccupied;
  double threshold = 0;
  float* logodds = nullptr;  // [max_out]
  int32_t* indices = nullptr;  // [max_out, 4]
  int64_t* counts = nullptr;  // [kStateCounts]: rows kept, found

  TORCHVOX_HD bool wants(int16_t found) const {
    const int8_t label = label_of(found, threshold);
    if (select == OccupancySelect::kOccupied) return label == 1;
    return select == OccupancySelect::kFree ? label == 0 : label >= 0;
  }
  TORCHVOX_HD void write(int64_t row, int64_t key, int32_t voxel, int16_t found) const {
    logodds[row] = static_cast<float>(found) / 1024;
    indices[4 * row] = 0;
    for (int axis = 0; axis < 3; ++axis) {
      indices[4 * row + 3 - axis] = voxel_of(key, voxel, axis);
    }
  }
  TORCHVOX_HD void write_unused(int64_t row) const {
    logodds[row] = 0;
    for (int column = 0; column < 4; ++column) indices[4 * row + column] = -1;
  }
};

TORCHVOX_KERNEL(OccupancyExtractArgs);

}  // namespace torchvox
