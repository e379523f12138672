// SPDX-License-Identifier: Apache-2.0
//
// The launchers that knn.cu combines, and the tiles between them.
#pragma once

#include <type_traits>

#include "csrc/kernels/neighbors/knn/knn.h"
#include "csrc/kernels/spatial/order.cuh"

namespace torchvox {

// Calls body with the number of keys that a lane holds, as a constant.
template <class Body>
auto with_list_run(int64_t k, Body&& body) {
  if (k <= 32) return body(std::integral_constant<int, 1>{});
  if (k <= 64) return body(std::integral_constant<int, 2>{});
  return body(std::integral_constant<int, 4>{});
}

// Any k, dtype, norm and number of axes: one block per query, which selects by the bits of the
// distances.
cudaError_t launch_knn_select(const KnnArgs& args, const CudaContext& context);

// The others are for is_fast() calls and up to kMostListed neighbors. This one, for batched clouds
// only, measures every point.
cudaError_t launch_knn_scan(const KnnArgs& args, const CudaContext& context);

// Points per tile and per group of tiles: one point, and one tile, per lane of a warp.
inline constexpr int kKnnTile = 32;
inline constexpr int kKnnGroup = 32 * kKnnTile;

// Clouds in spatial order, cut into tiles with boxes around them, and the queries that search them.
struct KnnTiles {
  // The boxes of the tiles of a group, by side: low a, b, c, high a, b, c.
  struct Group {
    float side[6][32];
  };
  int64_t groups = 0;
  int64_t groups_per_cloud = 0;  // batched
  Group* boxes = nullptr;  // [groups]
  float4* low = nullptr;  // [groups]: box of the whole group; w is unused
  float4* high = nullptr;
  int64_t first_row = 0;  // of the outputs
  int64_t rows = 0;
  float4* query = nullptr;  // [rows]: a, b, c, and the cloud to search, or -1
  uint32_t* home = nullptr;  // [rows]: the tile whose part of the curve contains the query

  // For `clouds` clouds at a time.
  KnnTiles(const KnnArgs& args, int64_t clouds, Workspace& workspace)
      : groups_per_cloud(ceil_div<int64_t>(args.points.rows, kKnnGroup)) {
    groups = args.points.packed ? args.points.rows / kKnnGroup + args.points.clouds
                                : clouds * groups_per_cloud;
    rows = args.points.packed ? args.query.rows : clouds * args.query.rows;
    boxes = workspace.take<Group>(groups);
    low = workspace.take<float4>(groups);
    high = workspace.take<float4>(groups);
    query = workspace.take<float4>(rows);
    home = workspace.take<uint32_t>(rows);
  }
};

// Visits the tiles that may hold a neighbor, nearest first.
cudaError_t launch_knn_tiles(const KnnArgs& args, const SpatialOrder& order, const KnnTiles& tiles,
                             cudaStream_t stream);

// The points and groups of a cloud. Groups of a packed cloud are numbered from offsets[b] /
// kKnnGroup + b, which makes the ranges of clouds disjoint without a scan over the clouds.
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

// Called by a whole warp, six lanes of which write.
__device__ __forceinline__ void put_box(KnnTiles::Group& group, int tile, const PointBox& box) {
  const int lane = threadIdx.x % 32;
  if (lane >= 6) return;
  const float low = lane == 0 ? box.low_a : (lane == 1 ? box.low_b : box.low_c);
  const float high = lane == 3 ? box.high_a : (lane == 4 ? box.high_b : box.high_c);
  group.side[lane][tile] = lane < 3 ? low : high;
}

// Called by one thread.
__device__ __forceinline__ void put_group_box(const KnnTiles& tiles, int64_t group,
                                              const PointBox& box) {
  tiles.low[group] = make_float4(box.low_a, box.low_b, box.low_c, 0.0f);
  tiles.high[group] = make_float4(box.high_a, box.high_b, box.high_c, 0.0f);
}

}  // namespace torchvox
