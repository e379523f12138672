// SPDX-License-Identifier: Apache-2.0
//
// The two steps with one thread a point: into the table, and into its voxel's segment.
#include <algorithm>
#include <type_traits>

#include "csrc/kernels/core/dependent_launch.cuh"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_points.cuh"
#include "csrc/kernels/voxel/voxel_unused.cuh"

namespace torchvox {
namespace {

// Points [begin, end) of a block of kEach points a thread.
struct BlockRange {
  int64_t begin;
  int64_t end;

  template <int kEach>
  __device__ static BlockRange of_block(int64_t rows) {
    const int64_t begin = int64_t{blockIdx.x} * (kEach * kVoxelThreads);
    return {begin, rows - begin < kEach * kVoxelThreads ? rows : begin + kEach * kVoxelThreads};
  }
};

// Reads x, y, z, finds the cell and adds the point to the table. Writes 8 bytes a point and touches
// one 32-byte sector of the table for each voxel of the warp. A thread has kEach points on their
// way at once, in every step.
template <class Real, int kEach, bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) insert_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ BlockTally tally;
  const BlockRange range = BlockRange::of_block<kEach>(args.points.rows);
  const int64_t first = range.begin + threadIdx.x;
  BlockTally::begin(args.points, range.begin, range.end, tally);
  LoadedPoint<Real> point[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    point[k] = load_point<Real>(args, work, first + k * kVoxelThreads, range.end, tally.samples);
  }
  using Key = std::conditional_t<kCommon, uint32_t, uint64_t>;  // a common key is short
  Key key[kEach];
  int column[kEach];
  unsigned lanes[kEach];
  VoxelTable::Insertion one[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    key[k] = static_cast<Key>(locate_point(args, point[k], &column[k]));
    const unsigned peers = WarpPeers::of(key[k]).lanes;
    lanes[k] = key[k] != static_cast<Key>(kNone64) ? peers : 0;
  }
  const auto inserts = [&](int k) { return lanes[k] != 0 && WarpPeers{lanes[k]}.leads(); };
  wait_for_previous();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    tally.add<kPointsOutOfRange, kPointsNotFinite>(work, point[k].sample, column[k]);
    if (inserts(k)) work.table.look(key[k], &one[k]);
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (inserts(k)) work.table.count(key[k], WarpPeers{lanes[k]}.count(), &one[k]);
  }
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t row = first + k * kVoxelThreads;
    const WarpPeers peers{lanes[k]};
    if (inserts(k)) {
      work.table.settle(key[k], static_cast<uint32_t>(row), peers.count(), &one[k]);
    }
    const unsigned maybe_first = __ballot_sync(0xffffffffu, inserts(k) && one[k].lowest);
    if (threadIdx.x % 32 == 0 && row < range.end) work.maybe_first[row / 32] = maybe_first;
    const uint32_t slot = peers.of_leader(one[k].slot);
    const uint32_t before = peers.of_leader(one[k].before);
    if (row < range.end) {
      work.slot[row] = lanes[k] != 0 ? slot : kNone32;
      // How many points of the voxel came before, in no order.
      if (lanes[k] != 0) work.arrival[row] = before + peers.earlier();
    }
  }
  let_next_begin();
  tally.flush(work);
}

// From a point's slot to its voxel's id and segment, and from there to its row. One random read of
// 16 bytes and one random write of 4; and the rows past the last voxel, which only have to be
// written, while the reads are on their way.
template <int kEach, bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) place_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ BlockTally tally;
  const BlockRange range = BlockRange::of_block<kEach>(args.points.rows);
  const int64_t first = range.begin + threadIdx.x;
  BlockTally::begin(args.points, range.begin, range.end, tally);
  wait_for_previous();
  uint32_t slot[kEach], arrival[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = first + k * kVoxelThreads;
    slot[k] = i < range.end ? work.slot[i] : kNone32;
    arrival[k] = slot[k] != kNone32 ? work.arrival[i] : 0;
  }
  VoxelTable::Entry entry[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    uint64_t key;
    entry[k] = slot[k] != kNone32 ? work.table.entry(slot[k], &key) : VoxelTable::Entry{kNone32, 0};
  }
  fill_unused_rows(args, work.totals->rows);
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int64_t i = first + k * kVoxelThreads;
    if (slot[k] != kNone32) {
      work.perm[int64_t{entry[k].count} + arrival[k]] = static_cast<uint32_t>(i);
    }
    finish_point(args, work, i, range.end, entry[k].first, arrival[k], tally);
  }
  let_next_begin();
  tally.flush(work);
}

// Several points a thread hide the latency of the table once there are enough for all threads.
constexpr int kMany = 4;
constexpr int64_t kManyRows = 500000;

template <int kEach>
unsigned point_blocks(const VoxelizeArgs& args) {
  return static_cast<unsigned>(ceil_div<int64_t>(args.points.rows, kEach * kVoxelThreads));
}

template <class Real, int kEach, bool kCommon = false>
cudaError_t launch_insert(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  return launch_after(insert_kernel<Real, kEach, kCommon>, point_blocks<kEach>(args), kVoxelThreads,
                      context, args, work);
}

template <int kEach, bool kCommon>
cudaError_t launch_place(const VoxelizeArgs& args, const VoxelWork& work,
                         const CudaContext& context) {
  // Threads for the points, and for rows that may stay unused, which can be many more.
  const int64_t capacity_bytes = args.capacity() * (20 + args.feature_row_bytes());
  const unsigned blocks =
      std::max(point_blocks<kEach>(args),
               blocks_for(capacity_bytes / 64, kVoxelThreads, context.target, 8));
  return launch_after(place_kernel<kEach, kCommon>, blocks, kVoxelThreads, context, args, work);
}

}  // namespace

cudaError_t insert_points(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const bool many = args.points.rows >= kManyRows;
  if (work.common && many) return launch_insert<float, kMany, true>(args, work, context);
  if (work.common) return launch_insert<float, 1, true>(args, work, context);
  if (args.points.dtype == DType::kDouble) return launch_insert<double, 1>(args, work, context);
  return launch_insert<float, 1>(args, work, context);
}

cudaError_t place_points(const VoxelizeArgs& args, const VoxelWork& work,
                         const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const bool many = args.points.rows >= kManyRows;
  if (work.common && many) return launch_place<kMany, true>(args, work, context);
  if (work.common) return launch_place<1, true>(args, work, context);
  return launch_place<1, false>(args, work, context);
}

}  // namespace torchvox
