// SPDX-License-Identifier: Apache-2.0
//
// Blocks that look at a tile of 64 x 64 pairs of boxes. A cheap test leaves few of them, scattered
// over the lanes: those are listed, so that whole warps do the long test.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace torchvox {

inline constexpr int kPairTile = 64;
inline constexpr int kPairTileThreads = 256;
inline constexpr int kPairRowsPerThread = kPairTile * kPairTile / kPairTileThreads;

struct PairQueue {
  uint16_t pairs[kPairTile * kPairTile];  // 64 * row + column, in any order
  int size;

  // By all threads, with a barrier before the first push.
  __device__ __forceinline__ void clear() {
    if (threadIdx.x == 0) size = 0;
  }
  // By whole warps: bit k of `near` stands for the pair (first_row + k, column).
  __device__ __forceinline__ void push(uint32_t near, int first_row, int column) {
    const int lane = threadIdx.x & 31, mine = __popc(near);
    int before = mine;
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, before, step);
      before += lane >= step ? other : 0;
    }
    int base = 0;
    if (lane == 31 && before > 0) base = atomicAdd(&size, before);
    int at = __shfl_sync(~0u, base, 31) + before - mine;
    for (; near != 0; near &= near - 1) {
      pairs[at++] = static_cast<uint16_t>((first_row + __ffs(near) - 1) * kPairTile + column);
    }
  }
  // body(row, column) for every pair; a barrier after the last push.
  template <class Body>
  __device__ __forceinline__ void each(const Body& body) const {
    for (int k = threadIdx.x; k < size; k += kPairTileThreads) {
      body(pairs[k] / kPairTile, pairs[k] % kPairTile);
    }
  }
};

}  // namespace torchvox
