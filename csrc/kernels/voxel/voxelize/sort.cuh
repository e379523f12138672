// SPDX-License-Identifier: Apache-2.0
//
// Orders the points of long segments: chunks of 4,096 in shared memory, then merges of runs twice
// as long each time.
//
// Phase p of task t waits for every task of phase p - 1. Blocks take (phase, task) in ticket order,
// so whatever a block waits for is held by a block that already runs: no co-residency is needed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {

struct SortedChunk {
  VoxelSegment segment;
  int64_t row;  // -1: the voxel is not kept, so its order is of no use
  uint32_t begin;  // first position in the segment
  uint32_t length;
};

__device__ inline SortedChunk chunk_of(const VoxelizeArgs& args, const VoxelWork& work,
                                       uint32_t task) {
  const SegmentTask t = work.sort_tasks[task];
  SortedChunk chunk;
  chunk.segment = work.segments[t.voxel];
  chunk.row = work.row_of_voxel(args, t.voxel, chunk.segment.key);
  chunk.begin = t.chunk * kSortChunk;
  const uint32_t rest = chunk.segment.count - chunk.begin;
  chunk.length = rest < kSortChunk ? rest : kSortChunk;
  return chunk;
}

// The last phase knows each point's final position, which is its slot.
__device__ inline void finish(const VoxelizeArgs& args, bool last_phase, uint32_t point,
                              uint32_t position) {
  if (!last_phase || args.point_slot == nullptr) return;
  const bool stored = args.max_points < 0 || position < args.max_points;
  args.point_slot[point] = stored ? static_cast<int32_t>(position) : -1;
}

// Bitonic sort of one chunk.
__device__ inline void sort_chunk(const VoxelizeArgs& args, const SortedChunk& chunk,
                                  uint32_t* perm, uint32_t* values, bool last_phase) {
  uint32_t* segment = perm + chunk.segment.place + chunk.begin;
  uint32_t size = 64;
  while (size < chunk.length) size *= 2;
  for (uint32_t k = threadIdx.x; k < size; k += blockDim.x) {
    values[k] = k < chunk.length ? segment[k] : kNone32;
  }
  __syncthreads();
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
      for (uint32_t pair = threadIdx.x; pair < size / 2; pair += blockDim.x) {
        const uint32_t low = 2 * pair - (pair & (distance - 1));
        const uint32_t high = low + distance;
        const bool ascending = (low & run) == 0;
        const uint32_t a = values[low], b = values[high];
        if ((a > b) == ascending) {
          values[low] = b;
          values[high] = a;
        }
      }
      __syncthreads();
    }
  }
  for (uint32_t k = threadIdx.x; k < chunk.length; k += blockDim.x) {
    segment[k] = values[k];
    finish(args, last_phase, values[k], chunk.begin + k);
  }
}

// Moves each point of a chunk to its place in the merger of its run with the neighbouring run: its
// place in its own run plus the number of smaller points in the other.
__device__ inline void merge_chunk(const VoxelizeArgs& args, const SortedChunk& chunk,
                                   const uint32_t* from, uint32_t* to, uint64_t run,
                                   bool last_phase) {
  const uint32_t* segment = from + chunk.segment.place;
  const uint64_t own = chunk.begin / run;
  const uint64_t count = chunk.segment.count;
  uint64_t other_begin = (own ^ 1) * run;
  if (other_begin > count) other_begin = count;
  const uint64_t other_end = other_begin + run < count ? other_begin + run : count;
  const uint64_t merged = (own & ~uint64_t{1}) * run;  // where the merger begins
  for (uint32_t k = threadIdx.x; k < chunk.length; k += blockDim.x) {
    const uint64_t position = uint64_t{chunk.begin} + k;
    const uint32_t point = segment[position];
    uint64_t low = other_begin, high = other_end;
    while (low < high) {
      const uint64_t middle = (low + high) / 2;
      if (segment[middle] < point) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    const uint64_t target = merged + (position - own * run) + (low - other_begin);
    to[chunk.segment.place + target] = point;
    finish(args, last_phase, point, static_cast<uint32_t>(target));
  }
}

// Orders every long segment; returns when all are. Each block of the grid calls; `values` is
// [kSortChunk] in shared memory.
__device__ inline void order_long_segments(const VoxelizeArgs& args, const VoxelWork& work,
                                           uint32_t* values) {
  VoxelCounters* counters = work.counters;
  const uint32_t tasks = counters->sort_tasks + 1;
  if (tasks == 0) return;
  // An even number of merges leaves the result in perm.
  uint32_t merges = 0;
  const uint64_t longest = kNone32 - counters->inverse_longest;
  while ((uint64_t{kSortChunk} << merges) < longest) ++merges;
  merges += merges & 1;
  uint32_t* other = work.arrival;  // of no use any more
  for (;;) {
    const uint32_t ticket = static_cast<uint32_t>(block_ticket(&counters->sort_ticket));
    const uint32_t phase = ticket / tasks;
    const uint32_t earlier = (phase <= merges ? phase : merges + 1) * tasks;
    if (threadIdx.x == 0) {
      while (load_relaxed(&counters->sort_done) + 1 < earlier) {
      }
      __threadfence();
    }
    __syncthreads();
    if (phase > merges) return;
    const SortedChunk chunk = chunk_of(args, work, ticket % tasks);
    if (chunk.row >= 0) {
      if (phase == 0) {
        sort_chunk(args, chunk, work.perm, values, merges == 0);
      } else {
        merge_chunk(args, chunk, phase % 2 ? work.perm : other, phase % 2 ? other : work.perm,
                    uint64_t{kSortChunk} << (phase - 1), phase == merges);
      }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&counters->sort_done, 1u);
  }
}

}  // namespace torchvox
