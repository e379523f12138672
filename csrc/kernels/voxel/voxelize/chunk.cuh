// SPDX-License-Identifier: Apache-2.0
//
// The part of the fused kernel before anything is known of other blocks' voxels: a block's points,
// and their way into the table.
#pragma once

#include <cooperative_groups.h>

#include <cstdint>
#include <utility>

#include "csrc/kernels/spatial/scan.cuh"
#include "csrc/kernels/voxel/voxelize/points.cuh"

namespace torchvox {

namespace cg = cooperative_groups;

// A block's points and what it knows of them, in shared memory.
struct Chunk {
  int64_t begin;
  int64_t end;
  int count;
  int per_thread;
  VoxelSegment* own;  // [count] voxels that begin here, by id; `place` is the slot of small ones
  uint32_t* voxel;  // [count] slot, then first point of the point's voxel; kNone32: none
  uint32_t* arrival;  // [count]
  uint32_t* voxels_before;  // [count] voxels that begin before the point; given offsets only
  char* rest;  // for the reduction

  __device__ Chunk(const VoxelizeArgs& args, const VoxelWork& work, char* storage) {
    const int64_t rows = args.points.rows;
    begin = int64_t{blockIdx.x} * work.fused.chunk;
    if (begin > rows) begin = rows;
    end = rows - begin < work.fused.chunk ? rows : begin + work.fused.chunk;
    count = static_cast<int>(end - begin);
    per_thread = work.fused.per_thread;
    own = reinterpret_cast<VoxelSegment*>(storage);
    voxel = reinterpret_cast<uint32_t*>(own + work.fused.chunk);
    arrival = voxel + work.fused.chunk;
    voxels_before = arrival + work.fused.chunk;
    rest = storage + work.fused.chunk_bytes;
  }
};

struct FusedShared {
  BlockTally tally;
  ScanShared scan;
  uint32_t first_id;  // of the voxels that begin in the block
  uint32_t voxels;
  uint32_t all_voxels;  // of all blocks
};

// The voxels of one round of a block's points, so that each goes into the table once and not once a
// warp: points that follow each other share voxels, and the table's atomics would queue.
template <class Key>
struct BlockTable {
  using Word = typename CudaAtomicType<Key>::type;
  static constexpr uint32_t kSlots = 2 * kFusedThreads;
  static constexpr Word kNoKey = static_cast<Word>(kNone64);
  Word key[kSlots];
  uint32_t count[kSlots];
  uint32_t first[kSlots];
  uint32_t slot[kSlots];  // in the table
  uint32_t before[kSlots];  // points of the voxel in the table already

  // Two slots a thread of the block are in use.
  __device__ void clear() {
#pragma unroll
    for (uint32_t s = threadIdx.x, k = 0; k < 2; s += blockDim.x, ++k) {
      key[s] = kNoKey;
      count[s] = 0;
      first[s] = kNone32;
    }
  }
  // Adds n points, the smallest of which is `row`. True for the one call that brought the key.
  __device__ bool insert(Key k, uint32_t row, uint32_t n, uint32_t* s, uint32_t* arrival) {
    const uint32_t last = 2 * blockDim.x - 1;
    uint32_t at = static_cast<uint32_t>((k * 0x9e3779b97f4a7c15ull) >> 32) & last;
    Word old;
    while ((old = atomicCAS(&key[at], kNoKey, static_cast<Word>(k))) != kNoKey && old != k) {
      at = (at + 1) & last;
    }
    *s = at;
    *arrival = atomicAdd(&count[at], n);
    atomicMin(&first[at], row);
    return old == kNoKey;
  }
};

// One thread a point. The first points are read and located, and their voxels told apart, while the
// workspace is being cleared; later ones are read while earlier ones are inserted.
template <class Real, class Key>
__device__ void insert_chunk(const VoxelizeArgs& args, const VoxelWork& work, const Chunk& chunk,
                             FusedShared& shared) {
  constexpr Key kNoKey = static_cast<Key>(kNone64);
  BlockTable<Key>& block = *reinterpret_cast<BlockTable<Key>*>(chunk.rest);
  BlockTally::begin(args.points, chunk.begin, chunk.end, shared.tally);
  const auto load = [&](int64_t i) {
    return load_point<Real>(args, work, chunk.begin + i, chunk.end, shared.tally.samples);
  };
  LoadedPoint<Real> next = load(threadIdx.x);
  clear_workspace(work);
  const cg::grid_group grid = cg::this_grid();
  auto cleared = grid.barrier_arrive();
#pragma unroll 1
  for (int first = 0; first < chunk.count || first == 0; first += blockDim.x) {
    const int i = first + threadIdx.x;
    block.clear();
    int column;
    const Key key = static_cast<Key>(locate_point(args, next, &column));
    __syncthreads();
    const WarpPeers peers = WarpPeers::of(key);
    uint32_t at = 0, arrival = 0;
    bool brings = false;
    if (key != kNoKey && peers.leads()) {
      brings =
          block.insert(key, static_cast<uint32_t>(chunk.begin + i), peers.count(), &at, &arrival);
    }
    if (first == 0) {
      grid.barrier_wait(std::move(cleared));
    } else {
      __syncthreads();
    }
    shared.tally.add<kPointsOutOfRange, kPointsNotFinite>(work, next.sample, column);
    next = load(int64_t{i} + blockDim.x);
    if (brings) {
      block.slot[at] =
          work.table.insert_new(key, block.first[at], block.count[at], &block.before[at]);
    }
    __syncthreads();
    at = peers.of_leader(at);
    arrival = peers.of_leader(arrival) + peers.earlier();
    if (i < chunk.count) {
      const uint32_t slot = key != kNoKey ? block.slot[at] : kNone32;
      if (key != kNoKey) arrival += block.before[at];
      chunk.voxel[i] = slot;
      chunk.arrival[i] = arrival;
      if (slot != kNone32 && arrival < kSmallVoxel) {
        work.lists[int64_t{slot} * kSmallVoxel + arrival] = static_cast<uint32_t>(chunk.begin + i);
      }
    }
    __syncthreads();
  }
}

}  // namespace torchvox
