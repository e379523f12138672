// SPDX-License-Identifier: Apache-2.0
//
// Mean intensities on the device. A cell's sum is a cascade over its points in input order; the
// blocks of 32 that it is made of are summed by as many lanes at once, so that a crowded cell is no
// serial chain.
#pragma once

#include "csrc/kernels/bev/rasterize_common.h"
#include "csrc/kernels/bev/scatter.cuh"

namespace torchvox {

inline constexpr int kMeanWarps = kBevThreads / 32;
inline constexpr int kMeanBlock = 32;  // values that one lane sums
inline constexpr int64_t kMeanChunk = 32 * kMeanBlock;  // values that one warp sums
static_assert(kMeanChunk == kBevGiant, "a warp sums the blocks of 32 cells in one go");

// Sum, from +0 and left to right, of `count` <= 32 intensities listed from `first` on. All loads
// are in flight at once.
__device__ __forceinline__ float sum_block(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count) {
  int32_t rows[kMeanBlock];
#pragma unroll
  for (int k = 0; k < kMeanBlock; ++k) rows[k] = k < count ? args.cell_points[first + k] : 0;
  float values[kMeanBlock];
#pragma unroll
  for (int k = 0; k < kMeanBlock; ++k) values[k] = k < count ? args.intensity[rows[k]] : 0.f;
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < kMeanBlock; ++k) {
    if (k < count) sum += values[k];
  }
  return sum;
}

// Sum of `count` <= 1024 values, given the sums of their blocks of 32.
__device__ __forceinline__ void add_blocks(const float* blocks, int64_t count,
                                           CascadeSum<float>& sum) {
  for (int64_t k = 0; k < count; k += kMeanBlock) {
    if (count - k >= kMeanBlock) {
      sum.add_block<1>(blocks[k / kMeanBlock]);
    } else {
      sum.add_rest<0>(blocks[k / kMeanBlock]);
    }
  }
}

// The sums of a warp's cells, one a lane, each of `count` <= 1024 values listed from `first` on.
// The blocks of all cells together are spread over the lanes.
__device__ __forceinline__ float sum_cells(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count, float (&sums)[32 * 32],
                                           uint8_t (&owners)[32 * 32]) {
  const unsigned all = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  const int blocks = static_cast<int>(ceil_div<int64_t>(count, kMeanBlock));
  int end = blocks;
  for (int d = 1; d < 32; d *= 2) {
    const int before = __shfl_up_sync(all, end, d);
    if (lane >= d) end += before;
  }
  const int begin = end - blocks, tasks = __shfl_sync(all, end, 31);
  for (int k = begin; k < end; ++k) owners[k] = static_cast<uint8_t>(lane);
  __syncwarp();
  for (int base = 0; base < tasks; base += 32) {
    const int task = base + lane;
    const int owner = task < tasks ? owners[task] : 0;
    const int64_t from = __shfl_sync(all, first, owner), many = __shfl_sync(all, count, owner);
    const int64_t skip = int64_t{kMeanBlock} * (task - __shfl_sync(all, begin, owner));
    if (task < tasks) {
      sums[task] =
          sum_block(args, from + skip, many - skip < kMeanBlock ? many - skip : kMeanBlock);
    }
  }
  __syncwarp();
  CascadeSum<float> sum;
  add_blocks(&sums[begin], count, sum);
  return sum.total();
}

// The sum of one cell by a whole thread block: each thread sums a block of 32 values, each warp
// adds up its 32, the first thread adds those in order. `sums` holds a value a thread. The result
// is right in the first thread.
__device__ __forceinline__ float sum_giant(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count, float* sums) {
  CascadeSum<float> sum;
  for (int64_t base = 0; base < count; base += kMeanWarps * kMeanChunk) {
    const int64_t left =
        count - base < kMeanWarps * kMeanChunk ? count - base : kMeanWarps * kMeanChunk;
    const int64_t mine = left - int64_t{kMeanBlock} * threadIdx.x;
    sums[threadIdx.x] = mine <= 0
        ? 0.f
        : sum_block(args, first + base + int64_t{kMeanBlock} * threadIdx.x,
                    mine < kMeanBlock ? mine : kMeanBlock);
    __syncthreads();
    float chunk = 0.f;
    if (threadIdx.x < left / kMeanChunk) {
      for (int k = 0; k < 32; ++k) chunk += sums[32 * threadIdx.x + k];
    }
    __syncwarp();
    if (threadIdx.x < left / kMeanChunk) sums[32 * threadIdx.x] = chunk;
    __syncwarp();
    if (threadIdx.x == 0) {
      for (int w = 0; w < left / kMeanChunk; ++w) sum.add_block<2>(sums[32 * w]);
      add_blocks(&sums[32 * (left / kMeanChunk)], left % kMeanChunk, sum);
    }
    __syncthreads();
  }
  return sum.total();
}

// Means of the cells with points, one thread a cell. Giants are listed.
__global__ void __launch_bounds__(kBevThreads, 3)
    bev_mean_kernel(const __grid_constant__ BevRasterizeArgs args,
                    const __grid_constant__ BevRasterTables tables) {
  __shared__ float sums[kMeanWarps][32 * 32];
  __shared__ uint8_t owners[kMeanWarps][32 * 32];
  let_next_begin();
  wait_for_previous();
  const int64_t cell = global_thread();
  int64_t count = cell < tables.cells ? tables.count[cell] : 0;
  if (count > kBevGiant) {
    tables.giants[atomicAdd(tables.giant_count, 1u)] = static_cast<int32_t>(cell);
    count = 0;
  }
  if (__all_sync(0xffffffffu, count == 0)) return;
  const int64_t first = count ? args.cell_offsets[cell] : 0;
  const int warp = threadIdx.x / 32;
  const float total = sum_cells(args, first, count, sums[warp], owners[warp]);
  if (count) tables.mean[cell] = quiet(total / static_cast<float>(count));
}

// Means of the giants, one thread block a cell.
__global__ void __launch_bounds__(kBevThreads)
    bev_giants_kernel(const __grid_constant__ BevRasterizeArgs args,
                      const __grid_constant__ BevRasterTables tables) {
  __shared__ float sums[kBevThreads];
  let_next_begin();
  wait_for_previous();
  for (uint32_t g = blockIdx.x; g < *tables.giant_count; g += gridDim.x) {
    const int64_t cell = tables.giants[g];
    const int64_t count = tables.count[cell];
    const float sum = sum_giant(args, args.cell_offsets[cell], count, sums);
    if (threadIdx.x == 0) tables.mean[cell] = quiet(sum / static_cast<float>(count));
  }
}

}  // namespace torchvox
