// SPDX-License-Identifier: Apache-2.0
//
// Ascending order of the points of one segment, by one warp. Every lane calls each function.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/voxel/voxelize/work.cuh"

namespace torchvox {

inline constexpr uint32_t kFewWanted = 16;

// One step of a bitonic network: lanes `distance` apart compare and swap.
__device__ __forceinline__ uint32_t compare_swap(uint32_t value, int distance, bool ascending) {
  const uint32_t other = __shfl_xor_sync(kWholeWarp, value, distance);
  const bool lower = (threadIdx.x & distance) == 0;
  return (lower == ascending) == (other < value) ? other : value;
}

// Sorts one value a lane.
__device__ __forceinline__ uint32_t warp_sort(uint32_t value) {
  for (int run = 2; run <= 32; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      value = compare_swap(value, distance, run == 32 || (threadIdx.x & run) == 0);
    }
  }
  return value;
}

// Leaves the `wanted` smallest of n points and of `best`, a value a lane, in `best`, in no order:
// kNone32 in the other lanes. n <= 32 * kWidth; n and the values of `best` are at least `wanted`
// together. All points are read at once; then their limit is bisected in registers.
template <int kWidth>
__device__ __forceinline__ uint32_t keep_smallest(uint32_t best, const uint32_t* points, uint32_t n,
                                                  uint32_t wanted, uint32_t* kept) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t value[kWidth + 1];
  uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    value[k] = 32 * k + lane < n ? points[32 * k + lane] : kNone32;
  }
  value[kWidth] = best;
#pragma unroll
  for (int k = 0; k <= kWidth; ++k) {
    if (value[k] != kNone32) largest = max(largest, value[k]);
  }
  uint32_t limit = 0;  // the bits found so far: fewer than `wanted` values are below
  for (uint32_t bit = 1u << (31 - __clz(warp_most(largest) | 1)); bit > 0; bit /= 2) {
    uint32_t count = 0;
#pragma unroll
    for (int k = 0; k <= kWidth; ++k) count += value[k] < limit + bit;
    count = warp_sum(count);
    if (count <= wanted) limit += bit;
    if (count == wanted) break;
    // Now count(value < limit) <= wanted < count(value < limit + bit).
  }
  uint32_t total = 0;
#pragma unroll
  for (int k = 0; k <= kWidth; ++k) {
    const unsigned votes = __ballot_sync(kWholeWarp, value[k] < limit);
    if (value[k] < limit) kept[total + __popc(votes & ((1u << lane) - 1))] = value[k];
    total += __popc(votes);
  }
  __syncwarp();
  best = lane < total ? kept[lane] : kNone32;
  __syncwarp();
  return best;
}

// The same, ascending by lane, one smallest value after the other: faster where few are wanted.
template <int kWidth>
__device__ __forceinline__ uint32_t take_smallest(uint32_t best, const uint32_t* points, uint32_t n,
                                                  uint32_t wanted) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t value[kWidth + 1];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    value[k] = 32 * k + lane < n ? points[32 * k + lane] : kNone32;
  }
  value[kWidth] = best;
  best = kNone32;
#pragma unroll 1
  for (uint32_t rank = 0; rank < wanted; ++rank) {
    uint32_t least = value[0];
#pragma unroll
    for (int k = 1; k <= kWidth; ++k) least = min(least, value[k]);
    least = ~warp_most(~least);
    if (lane == rank) best = least;
#pragma unroll
    for (int k = 0; k <= kWidth; ++k) {
      if (value[k] == least) value[k] = kNone32;
    }
  }
  return best;
}

// warp_select() for few wanted ones. Not inlined: its values would push others out of the registers
// of a kernel that does more besides.
static __device__ __noinline__ uint32_t warp_select_few(const uint32_t* points, uint32_t n,
                                                        uint32_t wanted) {
  constexpr uint32_t kMany = 256;
  if (n <= 64) return take_smallest<2>(kNone32, points, n, wanted);
  if (n <= 128) return take_smallest<4>(kNone32, points, n, wanted);
  uint32_t best = kNone32;
#pragma unroll 1
  for (uint32_t first = 0; first < n; first += kMany) {
    best = take_smallest<kMany / 32>(best, points + first, min(n - first, kMany), wanted);
  }
  return best;
}

// The `wanted` (1 to 32) smallest of n > 32 points, ascending by lane. `kept` has room for 32.
__device__ inline uint32_t warp_select(const uint32_t* points, uint32_t n, uint32_t wanted,
                                       uint32_t* kept) {
  constexpr uint32_t kMany = 256;
  uint32_t best = kNone32;
  if (wanted <= kFewWanted) return warp_select_few(points, n, wanted);
  if (n <= 128) {
    best = keep_smallest<4>(best, points, n, wanted, kept);
  } else {
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += kMany) {
      best = keep_smallest<kMany / 32>(best, points + first, min(n - first, kMany), wanted, kept);
    }
  }
  return warp_sort(best);
}

// Sorts n <= kWarpSort points in shared memory.
__device__ inline void warp_sort_shared(const uint32_t* points, uint32_t n, uint32_t* order) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t size = 64;
  while (size < n) size *= 2;
  for (uint32_t k = lane; k < size; k += 32) order[k] = k < n ? points[k] : kNone32;
  __syncwarp();
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
      for (uint32_t pair = lane; pair < size / 2; pair += 32) {
        const uint32_t low = 2 * pair - (pair & (distance - 1));
        const uint32_t high = low + distance;
        const uint32_t a = order[low], b = order[high];
        if ((a > b) == ((low & run) == 0)) {
          order[low] = b;
          order[high] = a;
        }
      }
      __syncwarp();
    }
  }
}

// Leaves the stored points of a segment in `order`, in input order, and writes the slots of all its
// points. The segment has at most work.sort_above points, and more than 32.
__device__ inline void order_segment(const VoxelizeArgs& args, const VoxelWork& work,
                                     const VoxelSegment& segment, uint32_t* order) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t n = segment.count;
  const uint32_t stored = static_cast<uint32_t>(args.stored(n));
  const uint32_t* points = work.perm + segment.place;
  int32_t* slots = args.point_slot;
  if (stored == 0) {
    for (uint32_t k = lane; slots != nullptr && k < n; k += 32) slots[points[k]] = -1;
    return;
  }
  if (stored <= 32) {
    const uint32_t point = warp_select(points, n, stored, order);
    if (lane < stored) order[lane] = point;
    if (slots != nullptr) {
      if (lane < stored) slots[point] = static_cast<int32_t>(lane);
      const uint32_t last = __shfl_sync(kWholeWarp, point, static_cast<int>(stored) - 1);
      for (uint32_t k = lane; k < n; k += 32) {
        if (points[k] > last) slots[points[k]] = -1;
      }
    }
    __syncwarp();
    return;
  }
  warp_sort_shared(points, n, order);
  for (uint32_t k = lane; slots != nullptr && k < n; k += 32) {
    slots[order[k]] = k < stored ? static_cast<int32_t>(k) : -1;
  }
}

}  // namespace torchvox
