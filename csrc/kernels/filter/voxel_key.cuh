// SPDX-License-Identifier: Apache-2.0
//
// The keys of a block's points, and their counts.
#pragma once

#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/filter/voxel_key.h"

namespace torchvox {

// Lives in shared memory; every thread of the block calls each function. The counts of the whole
// call are added up per block, those of a sample per warp, before they are added to the output.
struct KeyTally {
  int32_t sums[kKeyCounts];

  __device__ void begin() {
    if (threadIdx.x < kKeyCounts) sums[threadIdx.x] = 0;
    __syncthreads();
  }
  // The key of a row, kNoVoxelKey past the last one.
  template <class T, class Real>
  __device__ int64_t locate(const VoxelKeysArgs& args, int64_t row) {
    const CloudBatch& points = args.points;
    const int64_t sample = row < points.rows ? points.packed_owner(row) : -1;
    int64_t key = kNoVoxelKey;
    KeyCount column = kKeyCounts;
    if (sample >= 0) key = args.template locate_row<T, Real>(row, sample, &column);
    for (int c = 0; c < kKeyCounts; ++c) {
      const unsigned votes = __ballot_sync(kFullWarp, column == c);
      if (threadIdx.x % 32 == 0 && votes) atomicAdd(&sums[c], __popc(votes));
    }
    if (points.clouds > 1) {
      const int64_t place = sample < 0 ? -1 : (sample + 1) * args.counts_stride + column;
      const unsigned same = __match_any_sync(kFullWarp, static_cast<long long>(place));
      if (place >= 0 && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(same)) - 1) {
        atomicAdd(&args.counts[place], __popc(same));
      }
    }
    return key;
  }
  __device__ void flush(const VoxelKeysArgs& args) const {
    __syncthreads();
    if (threadIdx.x >= kKeyCounts || sums[threadIdx.x] == 0) return;
    atomicAdd(&args.counts[threadIdx.x], sums[threadIdx.x]);
    if (args.points.clouds == 1) {
      atomicAdd(&args.counts[args.counts_stride + threadIdx.x], sums[threadIdx.x]);
    }
  }
};

// voxel_keys; the counts must be cleared.
cudaError_t make_keys(const VoxelKeysArgs& args, const CudaContext& context);

}  // namespace torchvox
