// SPDX-License-Identifier: Apache-2.0
//
// The steps of the fused kernel within a block. First the block inserts the points of its partition
// into the table. After the voxels have their ids, it writes the rows of the voxels that begin in
// it, from the lists of their points.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "csrc/kernels/voxel/voxelize/reduce.cuh"

namespace torchvox {

namespace cg = cooperative_groups;

// A block's points and their voxels, in shared memory.
struct BlockPartition {
  int64_t begin, end;
  int count, per_thread;
  VoxelSegment* local;  // [count] voxels that begin here, by id; `place` is the slot of small ones
  uint32_t* voxel;  // [count] slot, then first point of the point's voxel; kNone32: none
  uint32_t* arrival;  // [count]
  uint32_t* voxels_before;  // [count] voxels that begin before the point; given offsets only
  char* rest;  // for the reduction

  __device__ BlockPartition(const VoxelizeArgs& args, const VoxelWork& work, char* storage) {
    const int64_t rows = args.points.rows;
    begin = int64_t{blockIdx.x} * work.fused.partition;
    if (begin > rows) begin = rows;
    end = rows - begin < work.fused.partition ? rows : begin + work.fused.partition;
    count = static_cast<int>(end - begin);
    per_thread = work.fused.per_thread;
    local = reinterpret_cast<VoxelSegment*>(storage);
    voxel = reinterpret_cast<uint32_t*>(local + work.fused.partition);
    arrival = voxel + work.fused.partition;
    voxels_before = arrival + work.fused.partition;
    rest = storage + work.fused.partition_bytes;
  }
};

struct FusedShared {
  BlockTally tally;
  ScanShared scan;
  uint32_t first_id;  // of the voxels that begin in the block
  uint32_t voxels;
  uint32_t all_voxels;  // of all blocks
};

// A hash table in shared memory of the voxels of one round of a block's points. Each voxel then
// enters the global table once per block and not once per warp: neighboring points share voxels,
// and their atomics on one slot would wait for each other.
template <class Key>
struct BlockTable {
  using Word = typename CudaAtomicType<Key>::type;
  static constexpr uint32_t kSlots = 2 * kFusedThreads;
  static constexpr Word kNoKey = static_cast<Word>(kNone64);
  Word key[kSlots];
  uint32_t count[kSlots], first[kSlots];
  uint32_t slot[kSlots];  // in the table
  uint32_t before[kSlots];  // points of the voxel in the table already

  // The first two slots per thread of the block are in use.
  __device__ void clear() {
#pragma unroll
    for (uint32_t s = threadIdx.x, k = 0; k < 2; s += blockDim.x, ++k) {
      key[s] = kNoKey;
      count[s] = 0;
      first[s] = kNone32;
    }
  }
  // Adds n points, the smallest of which is `row`, and returns whether the key is new. Sets *s to
  // the slot and *arrival to the number of points that were there.
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

// Inserts the points of the partition, one per thread and round. The points of the first round are
// read and located while the workspace is being cleared; those of later rounds are read while
// earlier ones are inserted.
template <class Real, class Key>
__device__ void insert_partition(const VoxelizeArgs& args, const VoxelWork& work,
                                 const BlockPartition& partition, FusedShared& shared) {
  constexpr Key kNoKey = static_cast<Key>(kNone64);
  BlockTable<Key>& block = *reinterpret_cast<BlockTable<Key>*>(partition.rest);
  BlockTally::begin(args.points, partition.begin, partition.end, shared.tally);
  const auto load = [&](int64_t i) {
    return load_point<Real>(args, work, partition.begin + i, partition.end, shared.tally.samples);
  };
  LoadedPoint<Real> next = load(threadIdx.x);
  clear_workspace(work);
  const cg::grid_group grid = cg::this_grid();
  auto cleared = grid.barrier_arrive();
#pragma unroll 1
  for (int first = 0; first < partition.count || first == 0; first += blockDim.x) {
    const int i = first + threadIdx.x;
    block.clear();
    int column;
    const Key key = static_cast<Key>(locate_point(args, next, &column));
    __syncthreads();
    const MatchingLanes matching = MatchingLanes::of(key);
    uint32_t at = 0, arrival = 0;
    bool is_new = false;
    if (key != kNoKey && matching.leads()) {
      is_new = block.insert(key, static_cast<uint32_t>(partition.begin + i), matching.count(), &at,
                            &arrival);
    }
    if (first == 0) {
      grid.barrier_wait(std::move(cleared));
    } else {
      __syncthreads();
    }
    shared.tally.add<kPointsOutOfRange, kPointsNotFinite>(work, next.sample, column);
    next = load(int64_t{i} + blockDim.x);
    if (is_new) {
      block.slot[at] =
          work.table.insert_new(key, block.first[at], block.count[at], &block.before[at]);
    }
    __syncthreads();
    at = matching.of_leader(at);
    arrival = matching.of_leader(arrival) + matching.earlier();
    if (i < partition.count) {
      const uint32_t slot = key != kNoKey ? block.slot[at] : kNone32;
      if (key != kNoKey) arrival += block.before[at];
      partition.voxel[i] = slot;
      partition.arrival[i] = arrival;
      if (slot != kNone32 && arrival < kSmallSegment) {
        work.lists[int64_t{slot} * kSmallSegment + arrival] =
            static_cast<uint32_t>(partition.begin + i);
      }
    }
    __syncthreads();
  }
}

// Voxel k of those that begin in the block; row -1 if there is none or it is not kept. With
// `writes` the thread writes the row's index and number of points.
__device__ __forceinline__ Voxel begin_row(const VoxelizeArgs& args, const VoxelWork& work,
                                           const BlockPartition& partition,
                                           const FusedShared& shared, uint32_t k, bool writes) {
  Voxel voxel{};
  voxel.row = -1;
  if (k >= shared.voxels) return voxel;
  const VoxelSegment segment = load_whole(&partition.local[k]);
  const int64_t row = work.row_of_voxel(args, shared.first_id + k, segment.key);
  if (row < 0 || row >= args.capacity()) return voxel;
  voxel = make_voxel(args, work, segment, row, true);
  if (writes) write_row(args, voxel);
  return voxel;
}

// Reduces the block's small voxels for any arguments: a warp takes four at a time, 8 lanes each.
template <class Real, ReduceKind kKind>
__device__ void reduce_local(const VoxelizeArgs& args, const VoxelWork& work,
                             const BlockPartition& partition, const FusedShared& shared,
                             WarpShared<Real>& warp_shared) {
  const uint32_t group = threadIdx.x / kSmallSegment;
  const uint32_t warp_first = threadIdx.x / 32 * (32 / kSmallSegment);
#pragma unroll 1
  for (uint32_t first = warp_first; first < shared.voxels; first += blockDim.x / kSmallSegment) {
    const uint32_t k = first - warp_first + group;
    const Voxel voxel =
        begin_row(args, work, partition, shared, k, threadIdx.x % kSmallSegment == 0);
    const uint32_t* const points = work.lists + int64_t{voxel.segment.place} * kSmallSegment;
    const uint32_t n = voxel.segment.count <= kSmallSegment ? voxel.segment.count : 0;
    rank_and_reduce<Real, kKind>(args, work, voxel, points, n, kSmallSegment, warp_shared);
  }
}

// The points of a small voxel in order, sorted by one lane in registers; kNone32 past the last one.
struct SmallOrder {
  uint32_t point[kSmallSegment];

  __device__ SmallOrder(const uint32_t* list, uint32_t n) {
    const uint4* const quads = reinterpret_cast<const uint4*>(list);
    const uint4 none = make_uint4(kNone32, kNone32, kNone32, kNone32);
    const uint4 low = n > 0 ? quads[0] : none;
    const uint4 high = n > 4 ? quads[1] : none;
    const uint32_t all[kSmallSegment] = {low.x,  low.y,  low.z,  low.w,
                                         high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kSmallSegment; ++i) {
      point[i] = static_cast<uint32_t>(i) < n ? all[i] : kNone32;
    }
#pragma unroll
    for (int run = 2; run <= kSmallSegment; run *= 2) {
#pragma unroll
      for (int distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i < kSmallSegment; ++i) {
          const int j = i ^ distance;
          if (j < i) continue;
          const uint32_t a = point[i], b = point[j];
          const bool ascending = (i & run) == 0;
          point[i] = ascending ? min(a, b) : max(a, b);
          point[j] = ascending ? max(a, b) : min(a, b);
        }
      }
    }
  }
};

// The four columns of a point in the usual call.
struct Quad {
  float value[4];

  __device__ static Quad load(const VoxelizeArgs& args, uint32_t point) {
    const float4 quad = __ldg(static_cast<const float4*>(args.points.data) + point);
    return {{quad.x, quad.y, quad.z, quad.w}};
  }
};

// One lane sums the points of a small voxel, four of which it reads at once, and writes the row.
__device__ __forceinline__ void sum_small(const VoxelizeArgs& args, const Voxel& voxel,
                                          const SmallOrder& order) {
  Quad total{};
#pragma unroll
  for (int first = 0; first < kSmallSegment; first += 4) {
    Quad points[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r < voxel.stored) points[r] = Quad::load(args, order.point[first + r]);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r >= voxel.stored) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) total.value[c] += points[r].value[c];
    }
  }
  if (args.reduce == VoxelReduce::kMean && voxel.stored > 0) {
#pragma unroll
    for (int c = 0; c < 4; ++c) total.value[c] /= static_cast<float>(voxel.stored);
  }
  store_four(args.features, args.out_dtype, 4 * voxel.row, total.value);
}

// Small voxels whose rows a block writes together, at most one per thread, in shared memory.
struct PaddedRows {
  uint32_t* stored;  // [threads]; kNone32: not a small voxel
  uint32_t* order;  // [threads, kSmallSegment]

  __device__ explicit PaddedRows(const BlockPartition& partition)
      : stored(reinterpret_cast<uint32_t*>(partition.rest)), order(stored + blockDim.x) {}
  static_assert((1 + kSmallSegment) * 32 * sizeof(uint32_t) <= sizeof(WarpShared<float>), "room");
};

// A block writes the padded rows of `rows` voxels from row `base` on; neighboring threads write
// neighboring points. Skips the rows of large segments.
__device__ inline void copy_rows(const VoxelizeArgs& args, const PaddedRows& shared, int64_t base,
                                 uint32_t rows) {
  constexpr uint32_t kAhead = 4;  // points that a thread reads at once
  const uint32_t width = static_cast<uint32_t>(args.max_points);
#pragma unroll 1
  for (uint32_t first = threadIdx.x; first < rows * width; first += kAhead * blockDim.x) {
    Quad value[kAhead];
    bool writes[kAhead];
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a) {
      const uint32_t at = first + a * blockDim.x, k = at / width, slot = at - k * width;
      const uint32_t stored = k < rows ? shared.stored[k] : kNone32;
      writes[a] = stored != kNone32;
      value[a] = {};
      if (writes[a] && slot < stored) {
        value[a] = Quad::load(args, shared.order[kSmallSegment * k + slot]);
      }
    }
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a) {
      const int64_t at = base * width + first + a * blockDim.x;
      if (writes[a]) store_four(args.features, args.out_dtype, 4 * at, value[a].value);
    }
  }
}

// Reduces the block's small voxels for the usual arguments, see assume_common(): one lane per
// voxel.
template <ReduceKind kKind>
__device__ void reduce_local_quads(const VoxelizeArgs& args, const VoxelWork& work,
                                   const BlockPartition& partition, const FusedShared& shared) {
#pragma unroll 1
  for (uint32_t first = 0; first < shared.voxels; first += blockDim.x) {
    const Voxel voxel = begin_row(args, work, partition, shared, first + threadIdx.x, true);
    const bool small = voxel.row >= 0 && voxel.segment.count <= kSmallSegment;
    const uint32_t n = small ? voxel.segment.count : 0;
    const SmallOrder order(work.lists + int64_t{voxel.segment.place} * kSmallSegment, n);
    if constexpr (kKind == ReduceKind::kCopy) {
      const PaddedRows padded(partition);
      padded.stored[threadIdx.x] = small ? voxel.stored : kNone32;
#pragma unroll
      for (int r = 0; r < kSmallSegment; ++r) {
        padded.order[kSmallSegment * threadIdx.x + r] = order.point[r];
      }
      const int rows = __syncthreads_count(voxel.row >= 0);
      copy_rows(args, padded, int64_t{shared.first_id} + first, static_cast<uint32_t>(rows));
      __syncthreads();
    } else if (small) {
      sum_small(args, voxel, order);
    }
  }
}

}  // namespace torchvox
