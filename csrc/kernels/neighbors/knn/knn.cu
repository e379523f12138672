// SPDX-License-Identifier: Apache-2.0
//
// knn on the GPU: launches the chosen kernel; for tiles the steps order, boxes, queries and search,
// for as many clouds at a time as share the workspace.
#include <cub/block/block_radix_sort.cuh>

#include "csrc/kernels/neighbors/knn/kernels.cuh"
#include "csrc/kernels/neighbors/knn/knn.h"

namespace torchvox {
namespace {

constexpr int64_t kMostBlockOrdered = 4096;  // points of a cloud that one block orders, at most
constexpr int kIndexBits = 12;  // of a point in its cloud
constexpr int kAxisBits = 6;
constexpr uint32_t kLast = 1u << (kIndexBits + 3 * kAxisBits);  // sorts after the finite points
static_assert(kMostBlockOrdered <= 1 << kIndexBits);

// Box and number of the finite points; called by all threads of the block.
__device__ CloudSummary summarize(const CandidatePoints& args, const CandidateCloud& cloud) {
  __shared__ CloudSummary shared;
  if (threadIdx.x == 0) shared = CloudSummary{};
  __syncthreads();
  CloudSummary mine{};
  for (uint32_t i = threadIdx.x; i < cloud.points; i += blockDim.x) {
    const Point3 p = load_point(args, cloud, i);
    if (is_finite(p)) mine.include(p);
  }
  __syncwarp();
  for (int axis = 0; axis < 3; ++axis) {
    mine.low[axis] = warp_max(mine.low[axis]);
    mine.high[axis] = warp_max(mine.high[axis]);
  }
  if (threadIdx.x % 32 == 0) {
    for (int axis = 0; axis < 3; ++axis) {
      atomicMax(&shared.low[axis], mine.low[axis]);
      atomicMax(&shared.high[axis], mine.high[axis]);
    }
  }
  if (mine.candidates > 0) atomicAdd(&shared.candidates, mine.candidates);
  __syncthreads();
  return shared;
}

// One block per cloud: reads its points, sorts them in registers as one word per point (place on
// the curve, index), and writes the ordered points and keys; then the boxes of its tiles, one warp
// per tile, and of its groups, one warp per group.
template <int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads)
    block_order_kernel(const __grid_constant__ CandidatePoints args,
                       const __grid_constant__ SpatialOrder order,
                       const __grid_constant__ KnnTiles tiles) {
  using Sort = cub::BlockRadixSort<uint32_t, kThreads, kEach>;
  __shared__ typename Sort::TempStorage storage;
  const CandidateCloud cloud = CandidateCloud::of(args, order.first_cloud + blockIdx.x);
  const CloudSummary summary = summarize(args, cloud);
  if (threadIdx.x == 0) order.summaries[blockIdx.x] = summary;

  uint32_t key[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const uint32_t i = threadIdx.x + j * kThreads;
    key[j] = kLast;
    if (i >= cloud.points) continue;
    const Point3 p = load_point(args, cloud, i);
    if (is_finite(p)) key[j] = curve_place(p, summary, kAxisBits) << kIndexBits | i;
  }
  Sort(storage).SortBlockedToStriped(key, kIndexBits, kIndexBits + 3 * kAxisBits + 1);

  const int64_t position = int64_t{blockIdx.x} * args.points.rows;
  const int64_t first_group = blockIdx.x * tiles.groups_per_cloud;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const uint32_t at = threadIdx.x + j * kThreads;
    if (at / 32 * 32 >= summary.candidates) continue;  // all of the warp
    PointBox box = PointBox::empty();
    if (at < summary.candidates) {
      const uint32_t i = key[j] & ((1u << kIndexBits) - 1);
      const Point3 p = load_point(args, cloud, i);
      const float4 point = make_float4(p.a, p.b, p.c, __uint_as_float(i));
      order.sorted[position + at] = point;
      order.sort.keys[order.sort.current][position + at] = key[j] >> kIndexBits;
      box.extend(point);
    }
    put_box(tiles.boxes[first_group + at / kKnnGroup], at % kKnnGroup / kKnnTile, warp_box(box));
  }
  __syncthreads();
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t group = threadIdx.x / 32; group * kKnnGroup < summary.candidates;
       group += kThreads / 32) {
    PointBox box = PointBox::empty();
    if (group * kKnnGroup + lane * kKnnTile < summary.candidates) {
      box = box_of(tiles.boxes[first_group + group], lane);
    }
    box = warp_box(box);
    if (lane == 0) put_group_box(tiles, first_group + group, box);
  }
}

constexpr int kThreads = 256;

// The cloud of group `number`. Its first group may lie after `number` if offsets are in disorder.
__device__ __forceinline__ int64_t cloud_of_group(const KnnArgs& args, const SpatialOrder& order,
                                                  const KnnTiles& tiles, int64_t number) {
  if (!args.points.packed) return order.first_cloud + number / tiles.groups_per_cloud;
  return last_where(int64_t{0}, args.points.clouds, [&](int64_t b) {
    return clamp_index(args.points.offsets[b], 0, args.points.rows) / kKnnGroup + b <= number;
  });
}

// One block per group, one warp per tile: reads 32 points, writes the box of the tile, and the
// first warp the box of the group. Tiles without points get empty boxes, and so do packed groups of
// no cloud, which are read when offsets in disorder make clouds overlap.
__global__ void __launch_bounds__(kKnnGroup)
    box_kernel(const __grid_constant__ KnnArgs args, const __grid_constant__ SpatialOrder order,
               const __grid_constant__ KnnTiles tiles) {
  __shared__ KnnTiles::Group sides;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t number = blockIdx.x;
  const int64_t b = cloud_of_group(args, order, tiles, number);
  const OrderedCloud cloud = OrderedCloud::of(args, order, tiles, b, KnnCloud::of(args, b));
  const int64_t at = (number - cloud.first_group) * kKnnGroup + threadIdx.x;
  if (!args.points.packed && at - threadIdx.x >= cloud.count) return;  // all of the block
  PointBox box = PointBox::empty();
  if (at >= 0 && at < cloud.count) box.extend(order.sorted[cloud.position + at]);
  put_box(sides, warp, warp_box(box));
  __syncthreads();
  if (warp < 6) tiles.boxes[number].side[warp][lane] = sides.side[warp][lane];
  if (warp > 0) return;
  box = warp_box(box_of(sides, lane));
  if (lane == 0) put_group_box(tiles, number, box);
}

// The last tile that begins at or before `place` on the curve, or 0.
__device__ __forceinline__ uint32_t tile_of(const SpatialOrder& order, const OrderedCloud& cloud,
                                            uint32_t place) {
  const uint32_t* const keys = order.sort.keys[order.sort.current] + cloud.position;
  const uint32_t mask = (1u << (3 * order.axis_bits)) - 1;
  return last_where(0u, ceil_div(cloud.count, uint32_t{kKnnTile}),
                    [&](uint32_t tile) { return (keys[tile * kKnnTile] & mask) <= place; });
}

// One thread per query: reads it, writes its axes, its cloud and its first tile, which is usually
// among the nearest.
__global__ void __launch_bounds__(kThreads)
    query_kernel(const __grid_constant__ KnnArgs args, const __grid_constant__ SpatialOrder order,
                 const __grid_constant__ KnnTiles tiles) {
  const int64_t at = global_thread();
  if (at >= tiles.rows) return;
  const CloudBatch::Place query = args.query.find(tiles.first_row + at);
  float4 out = make_float4(0.0f, 0.0f, 0.0f, __int_as_float(-1));
  if (query.cloud >= 0) {
    const Point3 q = load_axes(args, args.query.data, query.element);
    const OrderedCloud cloud =
        OrderedCloud::of(args, order, tiles, query.cloud, KnnCloud::of(args, query.cloud));
    if (is_finite(q) && cloud.count > 0) {
      out = make_float4(q.a, q.b, q.c, __int_as_float(static_cast<int>(query.cloud)));
      const CloudSummary& summary = order.summaries[query.cloud - order.first_cloud];
      tiles.home[at] = tile_of(order, cloud, curve_place(q, summary, order.axis_bits));
    }
  }
  tiles.query[at] = out;
}

// Points to order at once: bounds the workspace.
constexpr int64_t kPointsAtOnce = int64_t{1} << 25;

// The workspace of a call over tiles.
struct TileScratch {
  int64_t at_once;  // clouds at a time
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
  auto scratch = carve<TileScratch>(memory, args);
  SpatialOrder& order = scratch.order;
  KnnTiles& tiles = scratch.tiles;
  const CandidatePoints points = points_to_order(args);
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
      order.axis_bits = kAxisBits;
      order.sort.current = 0;
      const bool small = args.points.rows <= 1024;
      TORCHVOX_CUDA_CHECK(launch_blocks(
          small ? block_order_kernel<256, 4> : block_order_kernel<1024, 4>, grid_x(order.clouds),
          small ? 256 : 1024, context.stream, points, order, tiles));
    } else {
      TORCHVOX_CUDA_CHECK(make_spatial_order(points, order, context.stream));
      if (tiles.groups > 0) {
        TORCHVOX_CUDA_CHECK(launch_blocks(box_kernel, grid_x(tiles.groups), kKnnGroup,
                                          context.stream, args, order, tiles));
      }
    }
    const unsigned query_blocks = grid_x(ceil_div<int64_t>(tiles.rows, kThreads));
    TORCHVOX_CUDA_CHECK(
        launch_blocks(query_kernel, query_blocks, kThreads, context.stream, args, order, tiles));
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
