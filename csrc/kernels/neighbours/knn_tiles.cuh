// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/neighbours/knn_kernels.cuh"

namespace torchvox {

// Where the points and groups of a cloud lie. Groups of a ragged cloud are numbered from
// ptr[b] / kKnnGroup + b: ranges that never overlap and need no scan over the clouds.
struct OrderedCloud {
  int64_t position;  // of its first point in the order
  uint32_t count;  // finite points
  int64_t first_group;

  static __device__ __forceinline__ OrderedCloud of(const KnnArgs& args, const SpatialOrder& order,
                                                    const KnnTiles& tiles, int64_t b,
                                                    const KnnCloud& cloud) {
    const int64_t in_order = b - order.first_cloud;
    const int64_t position = args.ragged ? cloud.first : in_order * args.capacity;
    return {position, min(order.summaries[in_order].candidates, cloud.points),
            args.ragged ? position / kKnnGroup + b : in_order * tiles.groups_per_cloud};
  }
};

}  // namespace torchvox
