// SPDX-License-Identifier: Apache-2.0
//
// Ascending order of the points of one segment, by one warp. Every lane calls each function.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/voxel/voxel_work.cuh"

namespace torchvox {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

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

// Merges the smallest values so far, ascending by lane, with one more value a lane.
__device__ __forceinline__ uint32_t merge_smallest(uint32_t best, uint32_t value) {
  const uint32_t sorted = warp_sort(value);
  const uint32_t reversed = __shfl_sync(kWholeWarp, sorted, 31 - threadIdx.x % 32);
  best = reversed < best ? reversed : best;  // the 32 smallest of both, a bitonic sequence
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) best = compare_swap(best, distance, true);
  return best;
}

// The `wanted` (1 to 32) smallest of n points, ascending by lane. Of many points, the smallest of
// each lane bound them, so that few others come to be sorted; those wait in `pending` [64].
__device__ inline uint32_t warp_select(const uint32_t* points, uint32_t n, int wanted,
                                       uint32_t* pending) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t limit = kNone32;
  if (n > 128) {
#pragma unroll 4
    for (uint32_t k = lane; k < n; k += 32) limit = points[k] < limit ? points[k] : limit;
    limit = __shfl_sync(kWholeWarp, warp_sort(limit), wanted - 1);
  }
  uint32_t best = kNone32, waiting = 0;
#pragma unroll 1
  for (uint32_t first = 0; first < n || waiting > 0; first += 32) {
    const uint32_t point = first + lane < n ? points[first + lane] : kNone32;
    const bool candidate = point <= limit && point != kNone32;
    const unsigned votes = __ballot_sync(kWholeWarp, candidate);
    if (candidate) pending[waiting + __popc(votes & ((1u << lane) - 1))] = point;
    waiting += __popc(votes);
    __syncwarp();
    if (waiting < 32 && first + 32 < n) continue;
    best = merge_smallest(best, lane < waiting ? pending[lane] : kNone32);
    const uint32_t last = __shfl_sync(kWholeWarp, best, wanted - 1);
    limit = last < limit ? last : limit;
    const uint32_t rest = waiting > 32 ? waiting - 32 : 0;
    const uint32_t moved = lane < rest ? pending[32 + lane] : 0;
    __syncwarp();
    if (lane < rest) pending[lane] = moved;
    __syncwarp();
    waiting = rest;
  }
  return best;
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
    const uint32_t point = warp_select(points, n, static_cast<int>(stored), order);
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
