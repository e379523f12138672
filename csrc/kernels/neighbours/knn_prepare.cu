// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbours/knn_tiles.cuh"
#include "csrc/kernels/sampling/fps_pool.cuh"
#include "csrc/kernels/sampling/spatial_order.cuh"

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

// One block a group, one warp a tile. Tiles without points get empty boxes.
__global__ void __launch_bounds__(kKnnGroup)
    box_kernel(const __grid_constant__ KnnArgs args, const __grid_constant__ SpatialOrder order,
               const __grid_constant__ KnnTiles tiles) {
  __shared__ KnnTiles::Group sides;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t number = blockIdx.x;
  const int64_t b = cloud_of_group(args, order, tiles, number);
  const OrderedCloud cloud = OrderedCloud::of(args, order, tiles, b, KnnCloud::of(args, b));
  const int64_t at = (number - cloud.first_group) * kKnnGroup + threadIdx.x;
  if (number < cloud.first_group || at - threadIdx.x >= cloud.count) return;  // all of the block
  FpsBox box = FpsBox::empty();
  if (at < cloud.count) box.extend(order.sorted[cloud.position + at]);
  box = warp_box(box);
  if (lane < 6) {
    const float side = lane < 3 ? (lane == 0 ? box.low_a : (lane == 1 ? box.low_b : box.low_c))
                                : (lane == 3 ? box.high_a : (lane == 4 ? box.high_b : box.high_c));
    sides.side[lane][warp] = side;
  }
  __syncthreads();
  if (warp < 6) tiles.boxes[number].side[warp][lane] = sides.side[warp][lane];
  if (warp > 0) return;
  box = {sides.side[0][lane], sides.side[1][lane], sides.side[2][lane],
         sides.side[3][lane], sides.side[4][lane], sides.side[5][lane]};
  box = warp_box(box);
  if (lane == 0) {
    tiles.low[number] = make_float4(box.low_a, box.low_b, box.low_c, 0.0f);
    tiles.high[number] = make_float4(box.high_a, box.high_b, box.high_c, 0.0f);
  }
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

cudaError_t prepare_knn_tiles(const KnnArgs& args, const SpatialOrder& order, KnnTiles& tiles,
                              const CudaContext& context) {
  if (!args.ragged) {
    tiles.groups = order.clouds * tiles.groups_per_cloud;
    tiles.first_row = order.first_cloud * args.rows;
    tiles.rows = order.clouds * args.rows;
  }
  if (tiles.groups > 0) {
    box_kernel<<<static_cast<unsigned>(tiles.groups), kKnnGroup, 0, context.stream>>>(args, order,
                                                                                      tiles);
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
  }
  query_kernel<<<static_cast<unsigned>(ceil_div<int64_t>(tiles.rows, kThreads)), kThreads, 0,
                 context.stream>>>(args, order, tiles);
  return cudaGetLastError();
}

}  // namespace torchvox
