// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbours/knn_kernels.cuh"
#include "csrc/kernels/neighbours/knn_list.cuh"
#include "csrc/kernels/sampling/fps_pool.cuh"

namespace torchvox {
namespace {

constexpr int kSearchThreads = 256;
constexpr uint32_t kVisited = 0xffffffffu;  // instead of the bits of a bound

// Where the points and groups of a cloud lie. Groups of a ragged cloud are numbered from
// ptr[b] / kKnnGroup + b: ranges that never overlap and need no scan over the clouds.
struct OrderedCloud {
  const float4* points;  // a, b, c, index
  uint32_t count;  // finite points
  int64_t first_group;

  static __device__ OrderedCloud of(const KnnArgs& args, const SpatialOrder& order,
                                    const KnnBoxes& boxes, int64_t b, const KnnCloud& cloud) {
    const int64_t in_order = b - order.first_cloud;
    const int64_t position = args.ragged ? cloud.first : in_order * args.capacity;
    return {order.sorted + position, min(order.summaries[in_order].candidates, cloud.points),
            args.ragged ? position / kKnnGroup + b : in_order * boxes.groups_per_cloud};
  }
};

// Whose group `number` is. Its first group may lie after `number` when offsets are in disorder.
__device__ __forceinline__ int64_t cloud_of_group(const KnnArgs& args, const SpatialOrder& order,
                                                  const KnnBoxes& boxes, int64_t number) {
  if (!args.ragged) return order.first_cloud + number / boxes.groups_per_cloud;
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
               const __grid_constant__ KnnBoxes boxes) {
  __shared__ KnnBoxes::Group sides;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t number = blockIdx.x;
  const int64_t b = cloud_of_group(args, order, boxes, number);
  const OrderedCloud cloud = OrderedCloud::of(args, order, boxes, b, KnnCloud::of(args, b));
  const int64_t at = (number - cloud.first_group) * kKnnGroup + threadIdx.x;
  if (number < cloud.first_group || at - threadIdx.x >= cloud.count) return;  // all of the block
  FpsBox box = FpsBox::empty();
  if (at < cloud.count) box.extend(cloud.points[at]);
  box = warp_box(box);
  if (lane < 6) {
    const float side = lane < 3 ? (lane == 0 ? box.low_a : (lane == 1 ? box.low_b : box.low_c))
                                : (lane == 3 ? box.high_a : (lane == 4 ? box.high_b : box.high_c));
    sides.side[lane][warp] = side;
  }
  __syncthreads();
  if (warp < 6) boxes.tiles[number].side[warp][lane] = sides.side[warp][lane];
  if (warp > 0) return;
  box = {sides.side[0][lane], sides.side[1][lane], sides.side[2][lane],
         sides.side[3][lane], sides.side[4][lane], sides.side[5][lane]};
  box = warp_box(box);
  if (lane == 0) {
    boxes.low[number] = make_float4(box.low_a, box.low_b, box.low_c, 0.0f);
    boxes.high[number] = make_float4(box.high_a, box.high_b, box.high_c, 0.0f);
  }
}

// Bits of the bounds of one query; they order as the bounds do, which are not negative.
__device__ __forceinline__ uint32_t group_bound(const KnnBoxes& boxes, int64_t group,
                                                const float4& q) {
  const float4 low = boxes.low[group], high = boxes.high[group];
  return float_bits(FpsBox{low.x, low.y, low.z, high.x, high.y, high.z}.bound(q));
}
__device__ __forceinline__ uint32_t tile_bound(const KnnBoxes& boxes, int64_t group,
                                               const float4& q) {
  const auto& side = boxes.tiles[group].side;
  const int lane = threadIdx.x % 32;
  return float_bits(FpsBox{side[0][lane], side[1][lane], side[2][lane], side[3][lane],
                           side[4][lane], side[5][lane]}
                        .bound(q));
}

// Calls visit(lane) for the lanes' bounds in ascending order, as long as they are within reach: a
// box at exactly that distance may hold a point of a lower index. A bound of kVisited is none.
template <class Reach, class Visit>
__device__ __forceinline__ void nearest_first(uint32_t bound, Reach reach, Visit visit) {
  while (true) {
    const uint32_t nearest = warp_min(bound);
    if (nearest == kVisited || nearest > reach()) return;
    const int owner = __ffs(__ballot_sync(kFullWarp, bound == nearest)) - 1;
    if (static_cast<int>(threadIdx.x % 32) == owner) bound = kVisited;
    visit(owner);
  }
}

// One warp a query. First the group whose box is nearest, which brings the reach down to about what
// it will be; then every other group within reach; in a group its tiles, nearest first. A lane a
// group, a tile, a point.
template <int kRun>
__device__ __forceinline__ void search(const OrderedCloud& cloud, const KnnBoxes& boxes,
                                       const float4& q, KnnList<kRun>& list) {
  const int lane = threadIdx.x % 32;
  const uint32_t groups = ceil_div(cloud.count, uint32_t{kKnnGroup});
  const auto reach = [&] { return list.reach(); };
  const auto visit_group = [&](uint32_t group) {
    const uint32_t begin = group * kKnnGroup;
    const bool has_points = begin + lane * kKnnTile < cloud.count;
    const uint32_t bound = has_points ? tile_bound(boxes, cloud.first_group + group, q) : kVisited;
    nearest_first(bound, reach, [&](int tile) {
      const uint32_t at = begin + tile * kKnnTile + lane;
      KnnKey key = kNoKey;
      if (at < cloud.count) {
        const float4 p = cloud.points[at];
        key = knn_key(dist2(p.x - q.x, p.y - q.y, p.z - q.z), __float_as_uint(p.w));
      }
      list.take(key);
    });
  };
  uint32_t home = kNoCode;
  if (groups > 32) {
    uint32_t nearest = kVisited;
    for (uint32_t group = lane; group < groups; group += 32) {
      const uint32_t bound = group_bound(boxes, cloud.first_group + group, q);
      if (bound < nearest) nearest = bound, home = group;
    }
    const uint32_t least = warp_min(nearest);
    home = warp_min(nearest == least ? home : kNoCode);
    visit_group(home);
  }
  for (uint32_t base = 0; base < groups; base += 32) {
    const uint32_t group = base + lane;
    const uint32_t bound = group < groups && group != home
        ? group_bound(boxes, cloud.first_group + group, q)
        : kVisited;
    nearest_first(bound, reach, [&](int owner) { visit_group(base + owner); });
  }
}

template <int kRun>
__global__ void __launch_bounds__(kSearchThreads)
    search_kernel(const __grid_constant__ KnnArgs args, const __grid_constant__ SpatialOrder order,
                  const __grid_constant__ KnnBoxes boxes, int64_t first_row, int64_t rows) {
  const int64_t in_order = global_thread() / 32;
  if (in_order >= rows) return;
  const int64_t row = first_row + in_order;
  const KnnQuery query = KnnQuery::of(args, row);
  KnnList<kRun> list;
  list.clear(static_cast<int>(args.k));
  KnnCloud cloud{};
  if (query.cloud >= 0) {
    cloud = KnnCloud::of(args, query.cloud);
    const Point3 q = load_axes(args, args.query, query.at);
    if (is_finite(q)) {
      search(OrderedCloud::of(args, order, boxes, query.cloud, cloud), boxes,
             make_float4(q.a, q.b, q.c, 0.0f), list);
    }
  }
  write_list(args, row, list, cloud.points, cloud.index_base);
}

}  // namespace

KnnBoxes::KnnBoxes(const KnnArgs& args, int64_t clouds, Workspace& workspace)
    : groups_per_cloud(ceil_div<int64_t>(args.capacity, kKnnGroup)) {
  groups = args.ragged ? args.capacity / kKnnGroup + args.clouds : clouds * groups_per_cloud;
  tiles = workspace.take<Group>(groups);
  low = workspace.take<float4>(groups);
  high = workspace.take<float4>(groups);
}

cudaError_t launch_knn_tiles(const KnnArgs& args, const SpatialOrder& order, const KnnBoxes& boxes,
                             const CudaContext& context) {
  const int64_t groups = args.ragged ? boxes.groups : order.clouds * boxes.groups_per_cloud;
  if (groups > 0) {
    box_kernel<<<static_cast<unsigned>(groups), kKnnGroup, 0, context.stream>>>(args, order, boxes);
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
  }
  const int64_t first_row = args.ragged ? 0 : order.first_cloud * args.rows;
  const int64_t rows = args.ragged ? args.rows : order.clouds * args.rows;
  const int64_t blocks = ceil_div<int64_t>(rows * 32, kSearchThreads);
  with_list_run(args.k, [&](auto run) {
    search_kernel<run><<<static_cast<unsigned>(blocks), kSearchThreads, 0, context.stream>>>(
        args, order, boxes, first_row, rows);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
