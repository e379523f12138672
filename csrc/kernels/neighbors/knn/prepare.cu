// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbors/knn/tiles.cuh"
#include "csrc/kernels/spatial/order.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// Whose group `number` is. Its first group may lie after `number` when offsets are in disorder.
__device__ __forceinline__ int64_t cloud_of_group(const KnnArgs& args, const SpatialOrder& order,
                                                  const KnnTiles& tiles, int64_t number) {
  if (!args.ragged) return order.first_cloud + number / tiles.groups_per_cloud;
  int64_t low = 0, high = args.clouds;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (clamp_index(args.ptr[middle], 0, args.capacity) / kKnnGroup + middle <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// One block a group, one warp a tile. Tiles without points get empty boxes, and so do the ragged
// groups of no cloud, which are read where offsets in disorder make clouds overlap.
__global__ void __launch_bounds__(kKnnGroup)
    box_kernel(const __grid_constant__ KnnArgs args, const __grid_constant__ SpatialOrder order,
               const __grid_constant__ KnnTiles tiles) {
  __shared__ KnnTiles::Group sides;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t number = blockIdx.x;
  const int64_t b = cloud_of_group(args, order, tiles, number);
  const OrderedCloud cloud = OrderedCloud::of(args, order, tiles, b, KnnCloud::of(args, b));
  const int64_t at = (number - cloud.first_group) * kKnnGroup + threadIdx.x;
  if (!args.ragged && at - threadIdx.x >= cloud.count) return;  // all of the block
  FpsBox box = FpsBox::empty();
  if (at >= 0 && at < cloud.count) box.extend(order.sorted[cloud.position + at]);
  put_box(sides, warp, warp_box(box));
  __syncthreads();
  if (warp < 6) tiles.boxes[number].side[warp][lane] = sides.side[warp][lane];
  if (warp > 0) return;
  box = warp_box(box_of(sides, lane));
  if (lane == 0) put_group_box(tiles, number, box);
}

// The last tile that begins at or before `place` on the curve, 0 when there is none.
__device__ __forceinline__ uint32_t tile_of(const SpatialOrder& order, const OrderedCloud& cloud,
                                            uint32_t place) {
  const uint32_t* const keys = order.sort.keys[order.sort.current] + cloud.position;
  const uint32_t mask = (1u << (3 * order.axis_bits)) - 1;
  uint32_t low = 0, high = ceil_div(cloud.count, uint32_t{kKnnTile});
  while (low + 1 < high) {
    const uint32_t middle = (low + high) / 2;
    if ((keys[middle * kKnnTile] & mask) <= place) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// One thread a query: its axes, its cloud, and the tile to begin with, which is usually among the
// nearest.
__global__ void __launch_bounds__(kThreads)
    query_kernel(const __grid_constant__ KnnArgs args, const __grid_constant__ SpatialOrder order,
                 const __grid_constant__ KnnTiles tiles) {
  const int64_t at = global_thread();
  if (at >= tiles.rows) return;
  const KnnQuery query = KnnQuery::of(args, tiles.first_row + at);
  float4 out = make_float4(0.0f, 0.0f, 0.0f, __int_as_float(-1));
  if (query.cloud >= 0) {
    const Point3 q = load_axes(args, args.query, query.at);
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

}  // namespace

KnnTiles::KnnTiles(const KnnArgs& args, int64_t clouds, Workspace& workspace)
    : groups_per_cloud(ceil_div<int64_t>(args.capacity, kKnnGroup)) {
  groups = args.ragged ? args.capacity / kKnnGroup + args.clouds : clouds * groups_per_cloud;
  rows = args.ragged ? args.rows : clouds * args.rows;
  boxes = workspace.take<Group>(groups);
  low = workspace.take<float4>(groups);
  high = workspace.take<float4>(groups);
  query = workspace.take<float4>(rows);
  home = workspace.take<uint32_t>(rows);
}

cudaError_t make_knn_boxes(const KnnArgs& args, const SpatialOrder& order, const KnnTiles& tiles,
                           cudaStream_t stream) {
  if (tiles.groups == 0) return cudaSuccess;
  const unsigned blocks = grid_x(tiles.groups);
  box_kernel<<<blocks, kKnnGroup, 0, stream>>>(args, order, tiles);
  return cudaGetLastError();
}

cudaError_t make_knn_queries(const KnnArgs& args, const SpatialOrder& order, const KnnTiles& tiles,
                             cudaStream_t stream) {
  const unsigned blocks = grid_x(ceil_div<int64_t>(tiles.rows, kThreads));
  query_kernel<<<blocks, kThreads, 0, stream>>>(args, order, tiles);
  return cudaGetLastError();
}

}  // namespace torchvox
