// SPDX-License-Identifier: Apache-2.0
//
// knn on the GPU: the kernel that plan.cpp chose; for tiles the steps order, boxes, queries and
// search, for as many clouds at a time as share the workspace.
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/neighbors/knn/common.h"
#include "csrc/kernels/neighbors/knn/kernels.cuh"

namespace torchvox {
namespace {

constexpr int64_t kPointsAtOnce = int64_t{1} << 25;  // in order; a workspace that stops growing

// What the tiles of a call need; the sizes of its workspace follow from it.
struct TileScratch {
  FpsPlan plan;
  SpatialOrder order;
  KnnTiles tiles;

  TileScratch(const KnnArgs& args, Workspace& workspace)
      : plan(order_plan(args)),
        order(order_args(args), plan, workspace),
        tiles(args, plan.clouds_at_once, workspace) {}

 private:
  static FpsPlan order_plan(const KnnArgs& args) {
    FpsPlan plan;
    plan.large = FpsPlan::Large::kLazy;
    plan.clouds_at_once = args.clouds;
    if (!args.ragged && args.capacity > 0) {
      const int64_t most = kPointsAtOnce / args.capacity > 0 ? kPointsAtOnce / args.capacity : 1;
      plan.clouds_at_once = most < args.clouds ? most : args.clouds;
    }
    return plan;
  }
};

bool is_block_ordered(const KnnArgs& args) {
  if (args.ragged || args.capacity > kMostBlockOrdered) return false;
  const int64_t forced = plan_override(Plan::kKnnOrder);
  return forced == kAutomatic || forced == 0;
}

cudaError_t launch_tiles(const KnnArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  TileScratch scratch(args, workspace);
  SpatialOrder& order = scratch.order;
  KnnTiles& tiles = scratch.tiles;
  const int64_t at_once = scratch.plan.clouds_at_once;
  for (int64_t b = 0; b < args.clouds; b += at_once) {
    order.first_cloud = b;
    order.clouds = b + at_once < args.clouds ? at_once : args.clouds - b;
    if (!args.ragged) {
      order.points = order.clouds * args.capacity;
      tiles.groups = order.clouds * tiles.groups_per_cloud;
      tiles.first_row = b * args.rows;
      tiles.rows = order.clouds * args.rows;
    }
    if (is_block_ordered(args)) {
      TORCHVOX_CUDA_CHECK(make_knn_block_order(order_args(args), order, tiles, context.stream));
    } else {
      TORCHVOX_CUDA_CHECK(make_spatial_order(order_args(args), order, context.stream));
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
  Workspace workspace;
  const TileScratch scratch(args, workspace);
  return workspace.bytes();
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
