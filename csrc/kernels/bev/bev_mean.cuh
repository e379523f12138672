// SPDX-License-Identifier: Apache-2.0
//
// Mean intensities on the device. A cell's sum is a cascade over its points in input order; the
// blocks of 32 that it is made of are summed by as many lanes at once, so that a crowded cell is no
// serial chain.
#pragma once

#include "csrc/kernels/bev/bev_rasterize_common.h"
#include "csrc/kernels/bev/bev_scatter.cuh"

namespace torchvox {

inline constexpr int kMeanWarps = kBevThreads / 32;
inline constexpr int kMeanBlock = 32;  // values that one lane sums
inline constexpr int64_t kMeanChunk = 32 * kMeanBlock;  // values that one warp sums at a time
inline constexpr int64_t kMeanGiant = 4 * kMeanChunk;  // more are left to a whole thread block

// Sum, from +0 and left to right, of `count` <= 32 intensities listed from `first` on.
__device__ __forceinline__ float sum_block(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count) {
  constexpr int kAhead = 8;  // loads in flight
  float sum = 0.f;
  for (int64_t i = 0; i < count; i += kAhead) {
    float values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      values[k] = i + k < count ? args.intensity[args.cell_points[first + i + k]] : 0.f;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (i + k < count) sum += values[k];
    }
  }
  return sum;
}

// One warp adds `count` <= 1024 values listed from `first` on; every lane holds the same `sum`.
__device__ __forceinline__ void add_chunk(const BevRasterizeArgs& args, int64_t first,
                                          int64_t count, CascadeSum<float>& sum) {
  const int64_t before = int64_t{kMeanBlock} * (threadIdx.x % 32);
  const int64_t left = count - before;
  const int64_t mine = left < 0 ? 0 : (left < kMeanBlock ? left : kMeanBlock);
  const float block = sum_block(args, first + before, mine);
  for (int lane = 0; lane * kMeanBlock < count; ++lane) {
    const float value = __shfl_sync(0xffffffffu, block, lane);
    if (count - lane * kMeanBlock >= kMeanBlock) {
      sum.add_block<1>(value);
    } else {
      sum.add_rest<0>(value);
    }
  }
}

// A thread block sums the cell of a giant: its warps take a whole chunk each, the first thread adds
// the chunks in order, the first warp adds what is left.
__device__ __forceinline__ float sum_giant(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count, float (&chunks)[kMeanWarps]) {
  const int warp = threadIdx.x / 32;
  const int64_t whole = count / kMeanChunk;
  CascadeSum<float> sum;  // of the first warp
  for (int64_t c = 0; c < whole; c += kMeanWarps) {
    if (c + warp < whole) {
      const int64_t begin = first + (c + warp) * kMeanChunk;
      const float block = sum_block(args, begin + kMeanBlock * (threadIdx.x % 32), kMeanBlock);
      float chunk = 0.f;
      for (int lane = 0; lane < 32; ++lane) chunk += __shfl_sync(0xffffffffu, block, lane);
      if (threadIdx.x % 32 == 0) chunks[warp] = chunk;
    }
    __syncthreads();
    for (int w = 0; warp == 0 && w < kMeanWarps && c + w < whole; ++w) {
      sum.add_block<2>(chunks[w]);
    }
    __syncthreads();
  }
  if (warp == 0) add_chunk(args, first + whole * kMeanChunk, count % kMeanChunk, sum);
  return sum.total();  // right in the first warp
}

// One thread a cell of up to 32 points, one warp a cell of more, the thread block a giant.
__global__ void __launch_bounds__(kBevThreads)
    bev_mean_kernel(const __grid_constant__ BevRasterizeArgs args,
                    const __grid_constant__ BevRasterTables tables) {
  __shared__ float chunks[kMeanWarps];
  __shared__ int giants[kBevThreads];
  __shared__ int giant_count;
  let_next_begin();
  wait_for_previous();
  if (threadIdx.x == 0) giant_count = 0;
  __syncthreads();
  const int64_t block_cell = int64_t{blockIdx.x} * kBevThreads;
  const int64_t cell = block_cell + threadIdx.x;
  const int64_t count = cell < tables.cells ? tables.count[cell] : 0;
  const int64_t first = count ? args.cell_offsets[cell] : 0;
  float total = 0.f;
  if (count <= kMeanBlock) {
    total = sum_block(args, first, count);
  } else if (count > kMeanGiant) {
    giants[atomicAdd(&giant_count, 1)] = threadIdx.x;
  }
  unsigned crowded = __ballot_sync(0xffffffffu, count > kMeanBlock && count <= kMeanGiant);
  for (; crowded; crowded &= crowded - 1) {
    const int lane = __ffs(crowded) - 1;
    const int64_t from = __shfl_sync(0xffffffffu, first, lane);
    const int64_t many = __shfl_sync(0xffffffffu, count, lane);
    CascadeSum<float> sum;
    for (int64_t i = 0; i < many; i += kMeanChunk) {
      add_chunk(args, from + i, many - i < kMeanChunk ? many - i : kMeanChunk, sum);
    }
    if (threadIdx.x % 32 == lane) total = sum.total();
  }
  if (count > 0 && count <= kMeanGiant) {
    tables.mean[cell] = quiet(total / static_cast<float>(count));
  }
  __syncthreads();
  for (int g = 0; g < giant_count; ++g) {
    const int64_t giant = block_cell + giants[g];
    const int64_t many = tables.count[giant];
    const float sum = sum_giant(args, args.cell_offsets[giant], many, chunks);
    if (threadIdx.x == 0) tables.mean[giant] = quiet(sum / static_cast<float>(many));
  }
}

}  // namespace torchvox
