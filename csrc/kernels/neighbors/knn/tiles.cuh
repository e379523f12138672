// SPDX-License-Identifier: Apache-2.0
//
// Where the tiles of a cloud and their boxes lie, for prepare.cu and tiles.cu.
#pragma once

#include "csrc/kernels/neighbors/knn/kernels.cuh"
#include "csrc/kernels/spatial/box.cuh"

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
    const int64_t position = args.points.packed ? cloud.first : in_order * args.points.rows;
    return {position, min(order.summaries[in_order].candidates, cloud.points),
            args.points.packed ? position / kKnnGroup + b : in_order * tiles.groups_per_cloud};
  }
};

__device__ __forceinline__ PointBox box_of(const KnnTiles::Group& group, int tile) {
  const auto& side = group.side;
  return {side[0][tile], side[1][tile], side[2][tile], side[3][tile], side[4][tile], side[5][tile]};
}

// For a whole warp, six lanes of which write.
__device__ __forceinline__ void put_box(KnnTiles::Group& group, int tile, const PointBox& box) {
  const int lane = threadIdx.x % 32;
  if (lane >= 6) return;
  const float low = lane == 0 ? box.low_a : (lane == 1 ? box.low_b : box.low_c);
  const float high = lane == 3 ? box.high_a : (lane == 4 ? box.high_b : box.high_c);
  group.side[lane][tile] = lane < 3 ? low : high;
}

// For one thread.
__device__ __forceinline__ void put_group_box(const KnnTiles& tiles, int64_t group,
                                              const PointBox& box) {
  tiles.low[group] = make_float4(box.low_a, box.low_b, box.low_c, 0.0f);
  tiles.high[group] = make_float4(box.high_a, box.high_b, box.high_c, 0.0f);
}

}  // namespace torchvox
