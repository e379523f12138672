// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_extract: sorts the regions in use by key, counts their selected voxels, sums
// the counts, and writes the voxels that fit.
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
  float* mean = nullptr;  // [max_out, 3]: mean of the samples in voxels, from the center
  int32_t* indices = nullptr;  // [max_out, 4]
  int32_t* num_samples = nullptr;  // [max_out]
  int64_t* counts = nullptr;  // [kStateCounts]: rows written, voxels selected

  TORCHVOX_HD bool selects(int16_t voxel_logodds) const {
    const int8_t label = label_of(voxel_logodds, threshold);
    if (select == OccupancySelect::kOccupied) return label == 1;
    return select == OccupancySelect::kFree ? label == 0 : label >= 0;
  }
  TORCHVOX_HD void write(int64_t row, int64_t slot, int32_t voxel, int16_t voxel_logodds) const {
    const int64_t samples = state.samples_of(slot), at = samples * kRegionVoxels + voxel;
    const bool sampled = samples >= 0 && state.samples.count[at] > 0;
    logodds[row] = static_cast<float>(voxel_logodds) / kLogOddsUnit;
    num_samples[row] = sampled ? state.samples.count[at] : 0;
    indices[4 * row] = 0;
    for (int axis = 0; axis < 3; ++axis) {
      mean[3 * row + axis] = sampled ? state.samples.mean[3 * at + axis] : 0;
      indices[4 * row + 3 - axis] = voxel_of(state.region_key[slot], voxel, axis);
    }
  }
  TORCHVOX_HD void write_unused(int64_t row) const {
    logodds[row] = 0;
    num_samples[row] = 0;
    for (int column = 0; column < 3; ++column) mean[3 * row + column] = 0;
    for (int column = 0; column < 4; ++column) indices[4 * row + column] = -1;
  }
};

TORCHVOX_KERNEL(OccupancyExtractArgs);

}  // namespace torchvox
