// SPDX-License-Identifier: Apache-2.0
//
// An exclusive prefix sum over many blocks in one pass. Blocks take tickets, so every earlier tile
// belongs to a block that already runs, and waiting for it cannot deadlock. A tile's status is one
// 64-bit word that includes its value, so relaxed loads and stores suffice.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/warp.cuh"

namespace torchvox {

inline constexpr int kScanThreads = 256;  // per block

// Bits 63-62: 0 the tile's own sum, 1 the sum up to the end of the tile, 3 not ready (the cleared
// state). Below: voxels (31 bits), points (31 bits).
inline constexpr uint64_t kStatusTotal = uint64_t{1} << 62;
inline constexpr uint64_t kStatusValue = kStatusTotal - 1;

__device__ __forceinline__ uint64_t pack_sum(uint32_t voxels, uint32_t points) {
  return uint64_t{voxels} << 31 | points;
}
__device__ __forceinline__ uint32_t sum_voxels(uint64_t sum) {
  return static_cast<uint32_t>(sum >> 31) & 0x7fffffffu;
}
__device__ __forceinline__ uint32_t sum_points(uint64_t sum) {
  return static_cast<uint32_t>(sum) & 0x7fffffffu;
}

// Shared memory of a scan, one entry per warp.
struct ScanShared {
  uint64_t sums[32];
  bool has_total[32];
};

// Waits for the sum that a tile publishes.
__device__ __forceinline__ uint64_t wait_for_status(const uint64_t* status) {
  uint64_t word;
  do {
    word = load_relaxed(status);
  } while (word >> 62 == 3);
  return word;
}

struct TileSums {
  uint64_t before;  // of earlier tiles
  uint32_t all_voxels;
};

// Sum of the tiles before `tile`, and of all `tiles`. Tiles publish only their own sums, so there
// is no chain of waiting; all of them must run at once. Called by every thread of the block; one
// warp reads, with five loads per lane in flight at once.
__device__ __forceinline__ TileSums sum_of_tiles(const uint64_t* status, int tile, int tiles,
                                                 ScanShared& shared) {
  constexpr int kAhead = 5;
  if (threadIdx.x < 32) {
    uint32_t voxels = 0, points = 0, all_voxels = 0;
#pragma unroll 1
    for (int first = threadIdx.x; first < tiles; first += 32 * kAhead) {
      uint64_t word[kAhead];
      bool ready;
      do {
        ready = true;
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          word[k] = first + 32 * k < tiles ? load_relaxed(&status[first + 32 * k]) : 0;
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) ready = ready && word[k] >> 62 != 3;
      } while (!ready);
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const bool earlier = first + 32 * k < tile;
        all_voxels += sum_voxels(word[k]);
        voxels += earlier ? sum_voxels(word[k]) : 0;
        points += earlier ? sum_points(word[k]) : 0;
      }
    }
    __syncwarp();
    voxels = warp_sum(voxels);
    points = warp_sum(points);
    all_voxels = warp_sum(all_voxels);
    if (threadIdx.x == 0) {
      shared.sums[0] = pack_sum(voxels, points);
      shared.sums[1] = all_voxels;
    }
  }
  __syncthreads();
  return {shared.sums[0], static_cast<uint32_t>(shared.sums[1])};
}

// Publishes the sum of `tile` and returns that of all earlier tiles. One thread waits for the tile
// before, so that hundreds of blocks do not keep the memory busy by polling; then the whole block
// looks back at 256 tiles at once, down to the nearest one that has published a running total.
__device__ __forceinline__ uint64_t tile_prefix(uint64_t* status, int64_t tile, uint64_t sum,
                                                ScanShared& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    store_relaxed(&status[tile], (tile == 0 ? kStatusTotal : 0) | sum);
    if (tile > 0) wait_for_status(&status[tile - 1]);
  }
  __syncthreads();
  uint64_t before = 0;
  for (int64_t end = tile; end > 0; end -= kScanThreads) {
    const int64_t other = end - 1 - threadIdx.x;
    uint64_t word = kStatusTotal;
    if (other >= 0) word = wait_for_status(&status[other]);
    __syncwarp();
    const unsigned totals = __ballot_sync(0xffffffffu, (word & kStatusTotal) != 0);
    const int nearest = totals ? __ffs(static_cast<int>(totals)) - 1 : 31;
    uint64_t part = lane <= nearest ? word & kStatusValue : 0;
    for (int distance = 16; distance > 0; distance /= 2) {
      part += __shfl_xor_sync(0xffffffffu, part, distance);
    }
    if (lane == 0) {
      shared.sums[warp] = part;
      shared.has_total[warp] = totals != 0;
    }
    __syncthreads();
    bool done = false;
    for (int w = 0; w < kScanThreads / 32 && !done; ++w) {
      before += shared.sums[w];
      done = shared.has_total[w];
    }
    __syncthreads();
    if (done) break;
  }
  if (threadIdx.x == 0 && tile > 0) store_relaxed(&status[tile], kStatusTotal | (before + sum));
  return before;
}

// The ticket of this block, the same in all its threads.
__device__ __forceinline__ int64_t block_ticket(uint32_t* counter) {
  __shared__ uint32_t ticket;
  if (threadIdx.x == 0) ticket = atomicAdd(counter, 1u) + 1;
  __syncthreads();
  return ticket;
}

// True in every thread of the last of `blocks` blocks to call this; it then sees the writes of all
// others.
__device__ __forceinline__ bool is_last_block(uint32_t* counter, int64_t blocks) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = int64_t{atomicAdd(counter, 1u) + 1} == blocks - 1;
  __syncthreads();
  if (last) __threadfence();
  return last;
}

}  // namespace torchvox
