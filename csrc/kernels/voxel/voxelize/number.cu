// SPDX-License-Identifier: Apache-2.0
//
// Ids in order of first appearance. A point is its voxel's first exactly when the table holds its
// index, so ids and segments are one exclusive sum over the points, in point order.
#include "csrc/kernels/core/dependent_launch.cuh"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxelize/number.cuh"

namespace torchvox {
namespace {

constexpr int kAtOnce = 4;  // candidates of a thread that are read together

// The points of a tile that may be first ones, in point order.
struct Candidates {
  ScanShared scan;
  uint16_t point[kTilePoints];  // in the tile
  // `place` is the slot; a count of 0: not a first point. Then `count`: voxels before, in the tile.
  VoxelSegment voxel[kTilePoints];
};

// The candidate `c` and every 256th from there on, kAtOnce in all.
__device__ __forceinline__ void read_candidates(const VoxelWork& work, uint32_t begin, uint32_t c,
                                                uint32_t candidates, Candidates& shared) {
  uint32_t point[kAtOnce];
  VoxelSegment voxel[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const uint32_t at = c + k * kVoxelThreads;
    point[k] = begin + (at < candidates ? shared.point[at] : 0);
    voxel[k].place = at < candidates ? work.slot[point[k]] : 0;
  }
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    if (c + k * kVoxelThreads >= candidates) continue;
    const VoxelTable::Entry entry = work.table.entry(voxel[k].place, &voxel[k].key);
    voxel[k].count = entry.first == point[k] ? entry.count + 1 : 0;
  }
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    if (c + k * kVoxelThreads < candidates) shared.voxel[c + k * kVoxelThreads] = voxel[k];
  }
}

// Four points a thread, of which it keeps those that may be first ones: a bit a point. These are
// dealt out again; each reads its slot and one random sector of the table. Each voxel's first point
// writes its segment (16 bytes) and leaves the id in the table for the others.
template <bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) number_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ Candidates shared;
  const PackedPoints& points = args.points;
  wait_for_previous();
  const int64_t tile = block_ticket(&work.counters->scan_ticket);
  const int64_t begin = tile * kTilePoints;

  const int64_t row = begin + kTileEach * threadIdx.x;
  constexpr uint32_t kBits = (1u << kTileEach) - 1;
  uint32_t maybe = row < points.rows ? work.maybe_first[row / 32] >> row % 32 & kBits : 0;
  uint32_t candidates;
  uint32_t at = block_prefix(static_cast<uint32_t>(__popc(maybe)), shared.scan, &candidates);
  for (; maybe != 0; maybe &= maybe - 1) {
    shared.point[at++] = static_cast<uint16_t>(kTileEach * threadIdx.x + __ffs(maybe) - 1);
  }
  __syncthreads();

#pragma unroll 1
  for (uint32_t c = threadIdx.x; c < candidates; c += kAtOnce * kVoxelThreads) {
    read_candidates(work, static_cast<uint32_t>(begin), c, candidates, shared);
  }
  __syncthreads();

  const uint32_t each = (candidates + kVoxelThreads - 1) / kVoxelThreads;
  const uint32_t first = min(threadIdx.x * each, candidates);
  const uint32_t last = min(first + each, candidates);
  uint64_t sum = 0;
  uint32_t crowded = 0;
#pragma unroll 1
  for (uint32_t c = first; c < last; ++c) {
    const uint32_t count = shared.voxel[c].count;
    sum += pack_sum(count != 0, count);
    crowded += count > kSmallVoxel;
  }
  uint64_t total;
  uint64_t before = block_prefix(sum, shared.scan, &total);
  const auto places = CrowdedPlaces::reserve(work.counters, crowded);
  const uint64_t tiles_before = tile_prefix(work.status, tile, total, shared.scan);
  if (tile == work.tiles - 1 && threadIdx.x == 0) {
    store_relaxed(&work.totals->voxels, sum_voxels(tiles_before + total));
  }
  before += tiles_before;
  uint32_t crowded_at = places.first();

  for (uint32_t c = first; c < last; ++c) {
    const VoxelSegment voxel = shared.voxel[c];
    const uint32_t id = sum_voxels(before);
    if (points.offsets.given()) shared.voxel[c].count = id;
    if (voxel.count == 0) continue;
    const uint32_t place = sum_points(before);
    work.table.give_id(voxel.place, voxel.key, id, place);
    add_voxel(args, work, id, {voxel.key, place, voxel.count}, &crowded_at);
    if (work.bitmap != nullptr) {
      atomicAnd(&work.bitmap[voxel.key / 32], ~(1u << (voxel.key % 32)));
    }
    before += pack_sum(1, voxel.count);
  }
  let_next_begin();
  if (points.offsets.given()) {
    __syncthreads();
    const int64_t end = begin + kTilePoints < points.rows ? begin + kTilePoints : points.rows;
    for (int64_t b = threadIdx.x; b <= points.batches; b += kVoxelThreads) {
      const int64_t offset = points.offset(b);
      if (offset < begin || offset >= end) continue;
      uint32_t low = 0, high = candidates;  // the first candidate from the offset on
      while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (begin + shared.point[middle] < offset) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      work.sample_begin[b] =
          low < candidates ? shared.voxel[low].count : sum_voxels(tiles_before + total);
    }
  }
  const bool is_last = points.offsets.given() ? is_last_block(&work.counters->scan_done, work.tiles)
                                              : tile == work.tiles - 1;
  if (is_last) write_samples(args, work, shared.scan);
}

}  // namespace

cudaError_t number_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  const unsigned blocks = static_cast<unsigned>(work.tiles);
  return work.common
      ? launch_after(number_kernel<true>, blocks, kVoxelThreads, context, args, work)
      : launch_after(number_kernel<false>, blocks, kVoxelThreads, context, args, work);
}

}  // namespace torchvox
