// SPDX-License-Identifier: Apache-2.0
//
// Entry of furthest_point_sample_with_dist, furthest point sampling over a matrix of distances, and
// its rule: every point has the smallest of its distances to the samples; the next sample is the
// point with the largest.
#pragma once

#include <limits>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/spatial/candidates.h"

namespace torchvox {

struct FpsWithDistArgs {
  CloudBatch distances;  // padded, float, square: row i of a cloud has the distances from point i
  int64_t samples = 0;
  int64_t start = 0;
  int tie_block = 1;  // of TieRule
  float init_dist = std::numeric_limits<float>::infinity();
  int32_t* idx = nullptr;  // [clouds, samples]

  TORCHVOX_HD int64_t first_sample(uint32_t points) const { return start < points ? start : 0; }
  TORCHVOX_HD const float* row(int64_t cloud, int64_t i) const {
    return static_cast<const float*>(distances.data) + cloud * distances.cloud_stride +
        i * distances.row_stride;
  }
};

TORCHVOX_KERNEL(FpsWithDistArgs);

// The smaller of two distances; a NaN is ignored.
TORCHVOX_HD float lower_dist(float dist, float to_sample) {
  return to_sample < dist ? to_sample : dist;
}

// The point with the largest key is the next sample; of equal distances the smaller tie code wins.
TORCHVOX_HD uint64_t fps_key(float dist, uint32_t code) {
  return uint64_t{ordered_bits(dist + 0.0f)} << 32 | ~code;  // +0 and -0 are equal
}
TORCHVOX_HD uint32_t code_of_key(uint64_t key) { return ~static_cast<uint32_t>(key); }

}  // namespace torchvox
