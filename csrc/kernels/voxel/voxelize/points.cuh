// SPDX-License-Identifier: Apache-2.0
//
// The steps of one point: to its voxel's slot of the table, and later to a row. A block works on
// consecutive points; every thread of it calls each function.
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxelize/work.cuh"

namespace torchvox {

// Sets all bits of the cleared part. Every thread of the grid calls.
__device__ inline void clear_workspace(const VoxelWork& work) {
  uint4* const quads = reinterpret_cast<uint4*>(work.table.data);
  const int64_t count = work.cleared_bytes / 16;
#pragma unroll 1
  for (int64_t k = global_thread(); k < count; k += global_stride()) {
    quads[k] = make_uint4(kNone32, kNone32, kNone32, kNone32);
  }
}

// Finds the samples of a block's points: the samples of the first and last one bound the search, so
// a block inside one sample, the usual case, need not search.
struct BlockSamples {
  int64_t first, last;

  // For rows [begin, end). The caller must synchronize the block afterwards.
  __device__ static void find(const CloudBatch& points, int64_t begin, int64_t end,
                              BlockSamples& shared) {
    if (threadIdx.x == 0) {
      shared.first = points.block_of(begin);
      if (shared.first < 0) shared.first = 0;  // padding before the first sample
    }
    if (threadIdx.x == 32) {
      shared.last = end > begin ? points.block_of(end - 1) : 0;
      if (shared.last < 0) shared.last = points.clouds - 1;  // padding after the last sample
    }
  }
  // The sample of `row`, or -1.
  __device__ int64_t of(const CloudBatch& points, int64_t row) const {
    if (!points.offsets.given()) return 0;
    if (points.clouds == 0 || row < points.offset(0) || row >= points.offset(points.clouds)) {
      return -1;
    }
    if (first > last || points.offset(first) > row || points.offset(last + 1) <= row) {
      return points.block_of(row);
    }
    return last_where(first, last + 1, [&](int64_t b) { return points.offset(b) <= row; });
  }
  __device__ bool single() const { return first == last; }
};

// Counts points by column of `counts`. A block inside one sample adds up in shared memory first.
struct BlockTally {
  BlockSamples samples;
  uint32_t sums[5];

  __device__ static void begin(const CloudBatch& points, int64_t begin, int64_t end,
                               BlockTally& shared) {
    BlockSamples::find(points, begin, end, shared.samples);
    if (threadIdx.x < 5) shared.sums[threadIdx.x] = 0;
    __syncthreads();
  }
  // Adds one to column `column`, from kFirst to kLast or none, of the thread's sample.
  template <int kFirst, int kLast>
  __device__ void add(const VoxelWork& work, int64_t sample, int column) {
    if (samples.single()) {
      for (int c = kFirst; c <= kLast; ++c) {
        const unsigned votes = __ballot_sync(0xffffffffu, column == c);
        if (threadIdx.x % 32 == 0 && votes) {
          atomicAdd(&sums[c - kPointsStored], static_cast<uint32_t>(__popc(votes)));
        }
      }
    } else if (column >= kFirst && column <= kLast) {
      atomicAdd(&work.tallies[5 * sample + column - kPointsStored], 1u);
    }
  }
  __device__ void flush(const VoxelWork& work) {
    __syncthreads();
    if (threadIdx.x < 5 && sums[threadIdx.x]) {
      atomicAdd(&work.tallies[5 * samples.first + threadIdx.x], sums[threadIdx.x]);
      sums[threadIdx.x] = 0;
    }
  }
};

// A row's coordinates; `sample` is -1 for padding and past the end.
template <class Real>
struct LoadedPoint {
  int64_t sample = -1;
  Real x = 0, y = 0, z = 0;
  bool features_finite = true;  // always without args.all_finite
};

template <class Real>
__device__ LoadedPoint<Real> load_point(const VoxelizeArgs& args, const VoxelWork& work,
                                        int64_t row, int64_t end, const BlockSamples& samples) {
  LoadedPoint<Real> point;
  if (row >= end) return point;
  const int64_t sample = samples.of(args.points, row);
  if (sample < 0 || !args.points.exists(row, sample)) return point;
  point.sample = sample;
  load_position(args, work, row, &point.x, &point.y, &point.z);
  for (int64_t c = 3; args.all_finite && c < args.points.columns; ++c) {
    const int64_t at = row * args.points.row_stride + c;
    point.features_finite &= is_finite(load_as<Real>(args.points.data, args.points.dtype, at));
  }
  return point;
}

// The key of a point's cell; or kNone64, and in *column that of `counts` to which the point is
// added, -1 for padding.
template <class Real>
__device__ uint64_t locate_point(const VoxelizeArgs& args, const LoadedPoint<Real>& point,
                                 int* column) {
  *column = -1;
  if (point.sample < 0) return kNone64;
  Cell cell;
  PointPlace place = args.grid.locate(point.x, point.y, point.z, &cell);
  if (!point.features_finite) place = PointPlace::kNotFinite;
  if (place == PointPlace::kInside) return args.grid.key(point.sample, cell);
  *column = place == PointPlace::kOutside ? kPointsOutOfRange : kPointsNotFinite;
  return kNone64;
}

// The lanes of a warp with the same key as the calling one. The lowest is their leader and accesses
// the table for all of them.
struct MatchingLanes {
  unsigned lanes;

  __device__ static MatchingLanes of(uint64_t key) {
    return {__match_any_sync(0xffffffffu, static_cast<unsigned long long>(key))};
  }
  __device__ static MatchingLanes of(uint32_t key) { return {__match_any_sync(0xffffffffu, key)}; }
  __device__ int leader() const { return __ffs(static_cast<int>(lanes)) - 1; }
  __device__ bool leads() const { return static_cast<int>(threadIdx.x % 32) == leader(); }
  __device__ uint32_t count() const { return static_cast<uint32_t>(__popc(lanes)); }
  __device__ uint32_t earlier() const {
    return static_cast<uint32_t>(__popc(lanes & ((1u << (threadIdx.x % 32)) - 1)));
  }
  __device__ uint32_t of_leader(uint32_t value) const {
    return __shfl_sync(0xffffffffu, value, leader());
  }
};

// Inserts a thread's point into the table, once for all lanes with its key; none for kNone64.
template <class Key>
__device__ __forceinline__ void insert_row(const VoxelWork& work, Key key,
                                           const MatchingLanes& matching, int64_t row,
                                           int64_t end) {
  VoxelTable::Insertion added{kNone32, 0, false};
  if (key != static_cast<Key>(kNone64) && matching.leads()) {
    added = work.table.insert(key, static_cast<uint32_t>(row), matching.count());
  }
  const unsigned maybe_first = __ballot_sync(0xffffffffu, added.lowest);
  if (threadIdx.x % 32 == 0 && row < end) work.maybe_first[row / 32] = maybe_first;
  const uint32_t slot = matching.of_leader(added.slot);
  const uint32_t before = matching.of_leader(added.before);
  if (row < end) {
    work.slot[row] = slot;
    work.arrival[row] = before + matching.earlier();
  }
}

// Writes the row of a point of voxel `id` (kNone32: of none) and counts the point. The number of
// stored points does not depend on which ones are stored, so counting by arrival is enough.
__device__ inline void finish_point(const VoxelizeArgs& args, const VoxelWork& work, int64_t point,
                                    int64_t end, uint32_t id, uint32_t arrival, BlockTally& tally) {
  int column = -1;
  int64_t sample = 0;
  if (point < end) {
    int64_t row = -1;
    if (id != kNone32) {
      sample = tally.samples.of(args.points, point);
      row = work.row_of(args, work.rank(id), sample);
      const bool stored = args.max_points < 0 || arrival < args.max_points;
      column = row < 0 ? kPointsVoxelNotKept : stored ? kPointsStored : kPointsOverCap;
    }
    args.point_voxel[point] = static_cast<int32_t>(row);
    if (args.point_slot != nullptr && row < 0) args.point_slot[point] = -1;
  }
  tally.add<kPointsStored, kPointsVoxelNotKept>(work, sample, column);
}

// A column of `counts` for sample b.
__device__ __forceinline__ int32_t count_of(const VoxelWork& work, int64_t b, int column) {
  if (column == kVoxelsKept) return static_cast<int32_t>(work.row_begin[b + 1] - work.row_begin[b]);
  if (column == kVoxelsFound) {
    return static_cast<int32_t>(work.sample_begin[b + 1] - work.sample_begin[b]);
  }
  if (column >= kVoxelCountUnused) return 0;
  return static_cast<int32_t>(load_relaxed(&work.tallies[5 * b + column - kPointsStored]) + 1);
}

// One block writes all rows of `counts`; thread t adds up column t % 8. A single sample needs only
// one warp: the last, which has the least other work.
__device__ inline void write_counts(const VoxelizeArgs& args, const VoxelWork& work) {
  __shared__ int32_t sums[kFusedThreads];
  const int column = threadIdx.x % kVoxelCounts;
  if (args.points.clouds == 1) {
    if (threadIdx.x < blockDim.x - kVoxelCounts) return;
    args.counts[column] = args.counts[kVoxelCounts + column] = count_of(work, 0, column);
    return;
  }
  int32_t sum = 0;
#pragma unroll 1
  for (int64_t b = threadIdx.x / kVoxelCounts; b < args.points.clouds;
       b += blockDim.x / kVoxelCounts) {
    const int32_t value = count_of(work, b, column);
    args.counts[(b + 1) * kVoxelCounts + column] = value;
    sum += value;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kVoxelCounts) {
    const int most = args.points.clouds * kVoxelCounts < blockDim.x
        ? static_cast<int>(args.points.clouds) * kVoxelCounts
        : blockDim.x;
#pragma unroll 1
    for (int t = threadIdx.x + kVoxelCounts; t < most; t += kVoxelCounts) sum += sums[t];
    args.counts[column] = sum;
  }
}

}  // namespace torchvox
