// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/bev/bev_scatter.h"
#include "csrc/kernels/core/launch.cuh"

namespace torchvox {

inline constexpr int kBevThreads = 256;

// One thread a point. Counts of the block's first sample are voted on by warp and added up in
// shared memory, so a block costs four atomics; a thread of another sample adds to the counters
// itself.
template <class T, class Visit>
__global__ void __launch_bounds__(kBevThreads)
    bev_scatter_kernel(PackedPoints points, BevGrid grid, int32_t* counters,
                       const __grid_constant__ Visit visit) {
  __shared__ int32_t block_counts[kBevCounts];
  if (threadIdx.x < kBevCounts) block_counts[threadIdx.x] = 0;
  __syncthreads();

  const int64_t row = global_thread();
  const int64_t block_sample = points.sample_of(int64_t{blockIdx.x} * blockDim.x);
  const int64_t sample = row < points.rows ? points.valid_sample(row) : -1;
  BevPoint point{BevFate::kNonFinite, 0, 0.f};
  bool filled = false;
  if (sample >= 0) {
    point = locate_point<T>(points, grid, row, sample);
    if (point.fate == BevFate::kUsed) filled = visit(point, row);
  }
  const bool in_block = sample >= 0 && sample == block_sample;
  for (int c = 0; c < kBevCounts; ++c) {
    const bool hit = sample >= 0 && (c == kBevCellsFilled ? filled : c == count_of(point.fate));
    const unsigned votes = __ballot_sync(0xffffffffu, hit && in_block);
    if ((threadIdx.x & 31) == 0 && votes) atomicAdd(&block_counts[c], __popc(votes));
    if (hit && !in_block) atomicAdd(&counters[sample * kBevCounts + c], 1);
  }
  __syncthreads();
  if (threadIdx.x < kBevCounts && block_counts[threadIdx.x]) {
    atomicAdd(&counters[block_sample * kBevCounts + threadIdx.x], block_counts[threadIdx.x]);
  }
}

template <class Visit>
cudaError_t launch_scatter(const PackedPoints& points, const BevGrid& grid, int32_t* counters,
                           const Visit& visit, cudaStream_t stream) {
  if (points.rows == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(points.rows, kBevThreads));
  with_point_type(points.dtype, [&](auto type) {
    bev_scatter_kernel<decltype(type)>
        <<<blocks, kBevThreads, 0, stream>>>(points, grid, counters, visit);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
