// SPDX-License-Identifier: Apache-2.0
//
// Sums and extremes of voxels with more than 1,024 stored points, split at the levels of the sum
// rule among blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/voxel/voxelize/values.cuh"

namespace torchvox {

template <class Real>
struct WarpShared {
  uint32_t order[kWarpSort];
  Real tile[32 * kTileStride];
};

template <class Real>
struct GiantShared {
  Real value[32][kChunkColumns];
  int32_t point[32][kChunkColumns];
  bool last;
};

// A block a chunk of 1,024 stored points: 32 blocks of 32 by the warps, then their sum. The block
// that finishes a voxel's last chunk adds the chunks up.
template <class Real, ReduceKind kKind>
__device__ void giant_chunk(const VoxelizeArgs& args, const VoxelWork& work, int64_t task,
                            WarpShared<Real>& warp_shared, GiantShared<Real>& shared) {
  const SegmentTask chunk = work.giant_tasks[task];
  const VoxelSegment segment = work.segments[chunk.voxel];
  const int64_t row = work.row_of_voxel(args, chunk.voxel, segment.key);
  if (row < 0 || row >= args.capacity()) return;
  const Voxel voxel = make_voxel(args, work, segment, row, args.center_relative);
  const bool smallest = args.reduce == VoxelReduce::kMin;
  const int columns = static_cast<int>(args.points.columns);
  const uint32_t begin = chunk.chunk * kGiantChunk;
  const uint32_t length = voxel.stored - begin < kGiantChunk ? voxel.stored - begin : kGiantChunk;
  const uint32_t* order = work.perm + segment.place + begin;
  Real* values = static_cast<Real*>(work.giant_values);
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < columns; first += kChunkColumns) {
    const int n = columns - first < kChunkColumns ? columns - first : kChunkColumns;
    for (uint32_t b = threadIdx.x / 32; 32 * b < length; b += blockDim.x / 32) {
      const uint32_t count = length - 32 * b < 32 ? length - 32 * b : 32;
      Real part = 0;
      Best<Real> best;
      reduce_block<Real, kKind>(args, work, voxel.cell, order + 32 * b, count, first, n,
                                warp_shared.tile, &part, &best);
      if (lane < n) {
        shared.value[b][lane] = kKind == ReduceKind::kBest ? best.value : part;
        shared.point[b][lane] = best.point;
      }
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < n) {
      Real sum = 0;  // of whole blocks
      Best<Real> best;
      for (uint32_t b = 0; b < (length + 31) / 32; ++b) {
        if (kKind == ReduceKind::kBest) {
          best.add(shared.value[b][lane], shared.point[b][lane], smallest);
        } else if (32 * b + 32 <= length) {
          sum += shared.value[b][lane];
        }
      }
      const int64_t at = 2 * task * columns + first + lane;
      values[at] = kKind == ReduceKind::kBest ? best.value : sum;
      values[at + columns] = length % 32 ? shared.value[length / 32][lane] : Real(0);
      if (kKind == ReduceKind::kBest) work.giant_points[task * columns + first + lane] = best.point;
    }
    __syncthreads();
  }

  const int64_t first_task = task - chunk.chunk;
  const uint32_t chunks = (voxel.stored - 1) / kGiantChunk + 1;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = atomicAdd(&work.giant_done[first_task], 1u) + 1 == chunks - 1;
  }
  __syncthreads();
  if (shared.last) {
    __threadfence();
    for (int column = threadIdx.x; column < columns; column += blockDim.x) {
      CascadeSum<Real> sum;
      Best<Real> best;
      for (uint32_t c = 0; c < chunks; ++c) {
        const Real value = values[2 * (first_task + c) * columns + column];
        if (kKind == ReduceKind::kBest) {
          best.add(value, work.giant_points[(first_task + c) * columns + column], smallest);
        } else if (voxel.stored - c * kGiantChunk >= kGiantChunk) {
          sum.template add_block<2>(value);
        } else {
          sum.template add_rest<1>(value);
          sum.template add_rest<0>(values[(2 * (first_task + c) + 1) * columns + column]);
        }
      }
      write_value<Real, kKind>(args, voxel, column, sum.total(), best);
    }
  }
  __syncthreads();
}

}  // namespace torchvox
