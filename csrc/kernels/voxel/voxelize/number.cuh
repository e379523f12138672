// SPDX-License-Identifier: Apache-2.0
//
// Written when a voxel gets its id: its segment and tasks; and when all have ids: the samples.
#pragma once

#include "csrc/kernels/voxel/voxelize/work.cuh"

namespace torchvox {

// Reserves n entries of a list and returns the first.
__device__ __forceinline__ uint32_t append(uint32_t* counter, uint32_t n) {
  return atomicAdd(counter, n) + 1;
}

// Entries in the list of large segments: one atomic per warp, whose result is waited for only in
// first().
struct LargePlaces {
  uint32_t base;  // in the last lane
  uint32_t before;

  __device__ static LargePlaces reserve(VoxelCounters* counters, uint32_t n) {
    const int lane = threadIdx.x % 32;
    const uint32_t inclusive = warp_inclusive(n);
    LargePlaces places{0, inclusive - n};
    if (lane == 31 && inclusive > 0) places.base = append(&counters->large, inclusive);
    return places;
  }
  __device__ uint32_t first() const { return __shfl_sync(0xffffffffu, base, 31) + before; }
};

// Segments that are too long for a warp become tasks for blocks, one per chunk.
__device__ inline void add_tasks(const VoxelizeArgs& args, const VoxelWork& work, uint32_t id,
                                 uint32_t n) {
  if (n > work.sort_above) {
    atomicMin(&work.counters->inverse_longest, kNone32 - n);
    const uint32_t chunks = (n - 1) / kSortChunk + 1;
    const uint32_t base = append(&work.counters->sort_tasks, chunks);
    for (uint32_t c = 0; c < chunks; ++c) work.sort_tasks[base + c] = {id, c};
  }
  const int64_t stored = args.stored(n);
  if (work.splits && stored > kSplitChunk) {
    const uint32_t chunks = static_cast<uint32_t>((stored - 1) / kSplitChunk + 1);
    const uint32_t base = append(&work.counters->split_tasks, chunks);
    for (uint32_t c = 0; c < chunks; ++c) work.split_tasks[base + c] = {id, c};
  }
}

// Writes the segment of a voxel, and lists it if it is large. The thread of the voxel's first point
// calls.
__device__ inline void add_voxel(const VoxelizeArgs& args, const VoxelWork& work, uint32_t id,
                                 const VoxelSegment& segment, uint32_t* large_at) {
  store_whole(&work.segments[id], segment);
  if (segment.count <= kSmallSegment) return;
  store_whole(&work.large[(*large_at)++], LargeSegment{id, segment.place, segment.count, 0});
  add_tasks(args, work, id, segment.count);
}

// Writes the numbers of voxels and rows before each sample. One block calls, after every voxel has
// its id.
__device__ inline void write_samples(const VoxelizeArgs& args, const VoxelWork& work,
                                     ScanShared& shared) {
  const CloudBatch& points = args.points;
  if (!points.offsets.given()) {
    if (threadIdx.x != 0) return;
    const uint32_t voxels = load_relaxed(&work.totals->voxels);
    const uint32_t rows = static_cast<uint32_t>(args.kept(voxels));
    work.sample_begin[0] = work.row_begin[0] = 0;
    work.sample_begin[1] = voxels;
    work.row_begin[1] = work.totals->rows = rows;
    return;
  }
  const uint32_t voxels = load_relaxed(&work.totals->voxels);
#pragma unroll 1
  for (int64_t b = threadIdx.x; b <= points.clouds; b += blockDim.x) {
    if (points.offset(b) >= points.rows) work.sample_begin[b] = voxels;
  }
  __syncthreads();
  // Where the caller's offsets do not ascend, samples are empty rather than overlapping.
  bool falls = false;
#pragma unroll 1
  for (int64_t b = 1 + threadIdx.x; b <= points.clouds; b += blockDim.x) {
    falls |= load_relaxed(&work.sample_begin[b]) < load_relaxed(&work.sample_begin[b - 1]);
  }
  if (__syncthreads_or(falls)) {
    if (threadIdx.x == 0) {
      uint32_t highest = 0;
      for (int64_t b = 0; b <= points.clouds; ++b) {
        const uint32_t voxels_before = load_relaxed(&work.sample_begin[b]);
        highest = voxels_before > highest ? voxels_before : highest;
        store_relaxed(&work.sample_begin[b], highest);
      }
    }
    __syncthreads();
  }
  uint32_t rows = 0;
#pragma unroll 1
  for (int64_t first = 0; first < points.clouds; first += blockDim.x) {
    const int64_t b = first + threadIdx.x;
    uint32_t kept = 0;
    if (b < points.clouds) {
      const uint32_t begin = load_relaxed(&work.sample_begin[b]);
      const uint32_t end = load_relaxed(&work.sample_begin[b + 1]);
      kept = end > begin ? static_cast<uint32_t>(args.kept(end - begin)) : 0;
    }
    uint64_t total;
    const uint64_t before = block_prefix(uint64_t{kept}, shared.sums, &total);
    if (b < points.clouds) work.row_begin[b] = rows + static_cast<uint32_t>(before);
    rows += static_cast<uint32_t>(total);
  }
  if (threadIdx.x == 0) {
    work.row_begin[points.clouds] = rows;
    if (args.max_voxels < 0) rows = voxels;
    if (rows > args.capacity()) rows = static_cast<uint32_t>(args.capacity());
    work.totals->rows = rows;
  }
}

}  // namespace torchvox
