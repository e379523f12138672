// SPDX-License-Identifier: Apache-2.0
//
// knn over tiles of a spatial order: one warp per query. A lane takes a group of tiles, then a
// tile, then a point; boxes are visited nearest first and skipped beyond the k-th neighbor. A
// visited tile costs one coalesced read of 512 bytes.
#include "csrc/kernels/neighbors/knn/kernels.cuh"

#include "csrc/kernels/neighbors/knn/list.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int kBlocks = 4;  // per multiprocessor, which holds 1024 threads
#else
constexpr int kBlocks = 6;
#endif
constexpr uint32_t kTilesOfGroup = kKnnGroup / kKnnTile;
constexpr uint32_t kVisited = 0xffffffffu;  // in place of a bound: visited, or no box

// Calls visit(lane) for the lane `first` (unless negative), then for all lanes in ascending order
// of their bounds, while these are within reach: a box at exactly that distance may hold a point of
// a lower index. Lanes with kVisited are skipped.
template <class Reach, class Visit>
__device__ __forceinline__ void nearest_first(uint32_t bound, int first, Reach reach, Visit visit) {
  for (int next = first;; next = -1) {
    if (next < 0) {
      const uint32_t nearest = warp_min(bound);
      if (nearest == kVisited || nearest > reach()) return;
      next = __ffs(__ballot_sync(kFullWarp, bound == nearest)) - 1;
    }
    if (static_cast<int>(threadIdx.x % 32) == next) bound = kVisited;
    visit(next);
  }
}

// One query of a warp, with its neighbors so far. Bounds are compared by their bits, which have the
// same order, since bounds are not negative.
template <int kRun, int kNorm>
struct KnnSearch {
  const KnnTiles& tiles;
  const OrderedCloud& cloud;
  const float4* points;  // of the cloud
  float4 q;
  int k;
  KnnList<kRun>& list;

  // One lane per point.
  __device__ __forceinline__ void visit_tile(uint32_t tile) {
    const uint32_t at = tile * kKnnTile + threadIdx.x % 32;
    KnnKey key = kNoKey;
    if (at < cloud.count) {
      const float4 p = points[at];
      key = knn_key(norm_of<kNorm>(p.x - q.x, p.y - q.y, p.z - q.z), __float_as_uint(p.w));
    }
    list.take(key, k);
  }

  // One lane per tile.
  __device__ __forceinline__ void visit_group(uint32_t group, int first) {
    const int lane = threadIdx.x % 32;
    uint32_t bound = kVisited;
    if (group * kKnnGroup + lane * kKnnTile < cloud.count) {
      bound =
          float_bits(box_of(tiles.boxes[cloud.first_group + group], lane).template bound<kNorm>(q));
    }
    nearest_first(
        bound, first, [&] { return list.reach(); },
        [&](int tile) { visit_tile(group * kTilesOfGroup + tile); });
  }

  // One lane per group. It begins with the home tile, whose points bring the reach close to its
  // final value.
  __device__ __forceinline__ void run(uint32_t home) {
    const uint32_t groups = ceil_div(cloud.count, uint32_t{kKnnGroup});
    const uint32_t home_group = home / kTilesOfGroup;
    const uint32_t turns = ceil_div(groups, 32u);
    uint32_t base = home_group / 32 * 32;
    int first = home_group % 32;
    for (uint32_t turn = 0; turn < turns; ++turn) {
      const uint32_t group = base + threadIdx.x % 32;
      uint32_t bound = kVisited;
      if (group < groups) {
        const float4 low = tiles.low[cloud.first_group + group],
                     high = tiles.high[cloud.first_group + group];
        bound = float_bits(
            PointBox{low.x, low.y, low.z, high.x, high.y, high.z}.template bound<kNorm>(q));
      }
      nearest_first(
          bound, first, [&] { return list.reach(); },
          [&](int owner) {
            visit_group(base + owner, first == owner ? static_cast<int>(home % kTilesOfGroup) : -1);
          });
      first = -1;
      base = base + 32 < groups ? base + 32 : 0;
    }
  }
};

// One warp per query: reads boxes and the points of visited tiles, writes the row of the query.
template <int kRun, int kNorm>
__global__ void __launch_bounds__(kThreads, kRun <= 2 ? kBlocks : kBlocks - 1)
    search_kernel(const __grid_constant__ KnnArgs args, const __grid_constant__ SpatialOrder order,
                  const __grid_constant__ KnnTiles tiles) {
  const int64_t at = global_thread() / 32;
  if (at >= tiles.rows) return;
  const float4 q = tiles.query[at];
  const int b = __float_as_int(q.w), k = static_cast<int>(args.k);
  KnnList<kRun> list;
  list.clear(k);
  KnnCloud cloud{};
  if (b >= 0) {
    cloud = KnnCloud::of(args, b);
    const OrderedCloud ordered = OrderedCloud::of(args, order, tiles, b, cloud);
    KnnSearch<kRun, kNorm>{tiles, ordered, order.sorted + ordered.position, q, k, list}.run(
        tiles.home[at]);
  }
  write_list(args, tiles.first_row + at, list, cloud.points, cloud.index_base);
}

}  // namespace

cudaError_t launch_knn_tiles(const KnnArgs& args, const SpatialOrder& order, const KnnTiles& tiles,
                             cudaStream_t stream) {
  const unsigned blocks = grid_x(ceil_div<int64_t>(tiles.rows, kThreads / 32));
  return with_norm(args, [&](auto norm) {
    return with_list_run(args.k, [&](auto run) {
      return launch_blocks(search_kernel<run, norm>, blocks, kThreads, stream, args, order, tiles);
    });
  });
}

}  // namespace torchvox
