// SPDX-License-Identifier: Apache-2.0
//
// knn on the GPU: the kernel that plan.cpp chose; for tiles the steps order, boxes, queries and
// search, for as many clouds at a time as share the workspace.
#include "csrc/kernels/neighbors/knn/kernels.cuh"
#include "csrc/kernels/neighbors/knn/knn.h"

namespace torchvox {
namespace {

constexpr int64_t kPointsAtOnce = int64_t{1} << 25;  // in order; a workspace that stops growing

// What the tiles of a call need; the sizes of its workspace follow from it.
struct TileScratch {
  int64_t at_once;  // clouds
  SpatialOrder order;
  KnnTiles tiles;

  TileScratch(const KnnArgs& args, Workspace& workspace)
      : at_once(clouds_at_once(args.points)),
        order(points_to_order(args), at_once, /*above=*/-1, workspace),
        tiles(args, at_once, workspace) {}

 private:
  static int64_t clouds_at_once(const CloudBatch& points) {
    if (points.packed || points.rows == 0) return points.clouds;
    const int64_t most = kPointsAtOnce / points.rows > 0 ? kPointsAtOnce / points.rows : 1;
    return most < points.clouds ? most : points.clouds;
  }
};

bool is_block_ordered(const KnnArgs& args) {
  if (args.points.packed || args.points.rows > kMostBlockOrdered) return false;
  const int64_t forced = knn_order_plan.value();
  return forced == kAutomatic || forced == 0;
}

cudaError_t launch_tiles(const KnnArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  TileScratch scratch(args, workspace);
  SpatialOrder& order = scratch.order;
  KnnTiles& tiles = scratch.tiles;
  for (int64_t b = 0; b < args.points.clouds; b += scratch.at_once) {
    order.first_cloud = b;
    order.clouds =
        b + scratch.at_once < args.points.clouds ? scratch.at_once : args.points.clouds - b;
    if (!args.points.packed) {
      order.points = order.clouds * args.points.rows;
      tiles.groups = order.clouds * tiles.groups_per_cloud;
      tiles.first_row = b * args.query.rows;
      tiles.rows = order.clouds * args.query.rows;
    }
    if (is_block_ordered(args)) {
      TORCHVOX_CUDA_CHECK(
          make_knn_block_order(points_to_order(args), order, tiles, context.stream));
    } else {
      TORCHVOX_CUDA_CHECK(make_spatial_order(points_to_order(args), order, context.stream));
      TORCHVOX_CUDA_CHECK(make_knn_boxes(args, order, tiles, context.stream));
    }
    TORCHVOX_CUDA_CHECK(make_knn_queries(args, order, tiles, context.stream));
    TORCHVOX_CUDA_CHECK(launch_knn_tiles(args, order, tiles, context.stream));
  }
  return cudaSuccess;
}

}  // namespace

int64_t workspace_bytes_cuda(const KnnArgs& args, const Target& target) {
  if (choose_knn_kernel(args, target) != KnnKernel::kTiles) return 0;
  return carved_bytes<TileScratch>(args);
}

cudaError_t launch(const KnnArgs& args, void* memory, const CudaContext& context) {
  if (args.queries() == 0 || args.k == 0) return cudaSuccess;
  switch (choose_knn_kernel(args, context.target)) {
    case KnnKernel::kScan: return launch_knn_scan(args, context);
    case KnnKernel::kTiles: return launch_tiles(args, memory, context);
    case KnnKernel::kSelect: break;
  }
  return launch_knn_select(args, context);
}

}  // namespace torchvox
