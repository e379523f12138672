// SPDX-License-Identifier: Apache-2.0
#include <cub/block/block_radix_sort.cuh>

#include "csrc/kernels/neighbors/knn/tiles.cuh"
#include "csrc/kernels/spatial/order.cuh"

namespace torchvox {
namespace {

constexpr int kIndexBits = 12;  // of a point in its cloud
constexpr int kAxisBits = 6;
constexpr uint32_t kLast = 1u << (kIndexBits + 3 * kAxisBits);  // after the finite points
static_assert(kMostBlockOrdered <= 1 << kIndexBits);

// Box and number of the finite points, for all threads.
__device__ CloudSummary summarise(const FpsArgs& args, const FpsCloud& cloud) {
  __shared__ CloudSummary shared;
  if (threadIdx.x == 0) shared = CloudSummary{};
  __syncthreads();
  CloudSummary mine{};
  for (uint32_t i = threadIdx.x; i < cloud.points; i += blockDim.x) {
    const Point3 p = load_point(args, cloud, i);
    if (!is_finite(p)) continue;
    const float axes[3] = {p.a, p.b, p.c};
    for (int axis = 0; axis < 3; ++axis) {
      const uint32_t bits = ordered_bits(axes[axis]);
      mine.low[axis] = max(mine.low[axis], ~bits);
      mine.high[axis] = max(mine.high[axis], bits);
    }
    ++mine.candidates;
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

// One block puts one cloud in order: a word a point, its place on the curve and its index, sorted
// in registers; then the boxes of its tiles, a warp a tile, and of its groups, a warp a group.
template <int kThreads, int kEach>
__global__ void __launch_bounds__(kThreads)
    block_order_kernel(const __grid_constant__ FpsArgs args,
                       const __grid_constant__ SpatialOrder order,
                       const __grid_constant__ KnnTiles tiles) {
  using Sort = cub::BlockRadixSort<uint32_t, kThreads, kEach>;
  __shared__ typename Sort::TempStorage storage;
  const FpsCloud cloud = FpsCloud::of(args, order.first_cloud + blockIdx.x);
  const CloudSummary summary = summarise(args, cloud);
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

  const int64_t position = int64_t{blockIdx.x} * args.capacity;
  const int64_t first_group = blockIdx.x * tiles.groups_per_cloud;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const uint32_t at = threadIdx.x + j * kThreads;
    if (at / 32 * 32 >= summary.candidates) continue;  // all of the warp
    FpsBox box = FpsBox::empty();
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
    FpsBox box = FpsBox::empty();
    if (group * kKnnGroup + lane * kKnnTile < summary.candidates) {
      box = box_of(tiles.boxes[first_group + group], lane);
    }
    box = warp_box(box);
    if (lane == 0) put_group_box(tiles, first_group + group, box);
  }
}

}  // namespace

cudaError_t make_knn_block_order(const FpsArgs& args, SpatialOrder& order, const KnnTiles& tiles,
                                 cudaStream_t stream) {
  order.axis_bits = kAxisBits;
  order.sort.current = 0;
  const unsigned blocks = grid_x(order.clouds);
  if (args.capacity <= 1024) {
    block_order_kernel<256, 4><<<blocks, 256, 0, stream>>>(args, order, tiles);
  } else {
    block_order_kernel<1024, 4><<<blocks, 1024, 0, stream>>>(args, order, tiles);
  }
  return cudaGetLastError();
}

}  // namespace torchvox
