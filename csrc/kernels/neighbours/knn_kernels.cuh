// SPDX-License-Identifier: Apache-2.0
//
// The launchers that knn.cu puts together.
#pragma once

#include <type_traits>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbours/knn_common.h"
#include "csrc/kernels/sampling/fps_kernels.cuh"

namespace torchvox {

// Calls body with the keys that a lane holds, as a constant.
template <class Body>
auto with_list_run(int64_t k, Body&& body) {
  if (k <= 32) return body(std::integral_constant<int, 1>{});
  if (k <= 64) return body(std::integral_constant<int, 2>{});
  return body(std::integral_constant<int, 4>{});
}

// Any k, dtype, norm and number of axes: a block a query, which selects by the bits of the
// distance.
cudaError_t launch_knn_select(const KnnArgs& args, const CudaContext& context);

// The rest is for is_fast() calls and up to kMostListed neighbours. Batched clouds: measures every
// point.
cudaError_t launch_knn_scan(const KnnArgs& args, const CudaContext& context);

// Points of a tile, one a lane, and of a group of tiles, one a lane as well.
inline constexpr int kKnnTile = 32;
inline constexpr int kKnnGroup = 32 * kKnnTile;

// Boxes around the tiles of clouds in spatial order. Coordinates come one after the other: low a,
// b, c, high a, b, c, each of all 32 tiles of a group.
struct KnnBoxes {
  struct Group {
    float side[6][32];
  };
  Group* tiles = nullptr;  // [groups]
  float4* low = nullptr;  // [groups] of a group; w is unused
  float4* high = nullptr;
  int64_t groups = 0;
  int64_t groups_per_cloud = 0;  // batched

  // For `clouds` clouds at a time.
  KnnBoxes(const KnnArgs& args, int64_t clouds, Workspace& workspace);
};

// Large clouds: visits the tiles that may hold a neighbour, nearest first. For the clouds of
// `order`.
cudaError_t launch_knn_tiles(const KnnArgs& args, const SpatialOrder& order, const KnnBoxes& boxes,
                             const CudaContext& context);

}  // namespace torchvox
