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

constexpr int kStayingBlocks = 6;  // a multiprocessor

__host__ __device__ int64_t point_tiles(const VoxelizeArgs& args) {
  return (args.points.rows + kVoxelThreads - 1) / kVoxelThreads;
}

// The points [begin, end) that a block takes at once.
struct BlockRange {
  int64_t begin;
  int64_t end;

  __device__ static BlockRange of(const VoxelizeArgs& args, int64_t tile) {
    const int64_t begin = tile * kVoxelThreads;
    const int64_t rest = args.points.rows - begin;
    return {begin, rest < kVoxelThreads ? args.points.rows : begin + kVoxelThreads};
  }
  __device__ int64_t row() const { return begin + threadIdx.x; }
};

// Reads x, y, z, finds the cell and adds the point to the table. Writes 8 bytes a point and touches
// one 32-byte sector of the table for each voxel of the warp. A thread has one point in the table's
// hands, so that later points find the voxels of earlier ones there, and reads the next meanwhile.
template <class Real, bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) insert_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ BlockTally tally;
  BlockRange range = BlockRange::of(args, blockIdx.x);
  BlockTally::begin(args.points, range.begin, range.end, tally);
  LoadedPoint<Real> next = load_point<Real>(args, work, range.row(), range.end, tally.samples);
  wait_for_previous();
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile < point_tiles(args); tile += gridDim.x) {
    const LoadedPoint<Real> point = next;
    const int64_t row = range.row(), end = range.end;
    if (kCommon) {  // a block of the others has one tile: its samples belong to it
      range = BlockRange::of(args, tile + gridDim.x);
      next = load_point<Real>(args, work, range.row(), range.end, tally.samples);
    }
    using Key = std::conditional_t<kCommon, uint32_t, uint64_t>;  // a common key is short
    int column;
    const Key key = static_cast<Key>(locate_point(args, point, &column));
    const WarpPeers peers = WarpPeers::of(key);
    tally.add<kPointsOutOfRange, kPointsNotFinite>(work, point.sample, column);
    VoxelTable::Insertion added{kNone32, 0, false};
    if (key != static_cast<Key>(kNone64) && peers.leads()) {
      added = work.table.insert(key, static_cast<uint32_t>(row), peers.count());
    }
    const unsigned maybe_first = __ballot_sync(0xffffffffu, added.lowest);
    if (threadIdx.x % 32 == 0 && row < end) work.maybe_first[row / 32] = maybe_first;
    const uint32_t slot = peers.of_leader(added.slot);
    const uint32_t before = peers.of_leader(added.before);
    if (row < end) {
      work.slot[row] = slot;
      // How many points of the voxel came before, in no order.
      work.arrival[row] = before + peers.earlier();
    }
  }
  let_next_begin();
  tally.flush(work);
}

// From a point's slot to its voxel's id and segment, and from there to its row. One random read of
// 16 bytes and one random write of 4; the next point's slot is read meanwhile. The first
// `fill_blocks` blocks write the rows past the last voxel: bandwidth that the others, which wait for
// their reads, leave over.
template <bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads)
    place_kernel(VoxelizeArgs args, VoxelWork work, unsigned fill_blocks) {
  assume_common<kCommon>(args, work);
  if (blockIdx.x < fill_blocks) {
    wait_for_previous();
    fill_unused_rows(args, work.totals->rows, fill_blocks);
    return;
  }
  __shared__ BlockTally tally;
  const int64_t first = blockIdx.x - fill_blocks;
  const int64_t stride = gridDim.x - fill_blocks;
  BlockRange range = BlockRange::of(args, first);
  BlockTally::begin(args.points, range.begin, range.end, tally);
  wait_for_previous();
  uint32_t next_slot = range.row() < range.end ? work.slot[range.row()] : kNone32;
  uint32_t next_arrival = range.row() < range.end ? work.arrival[range.row()] : 0;
#pragma unroll 1
  for (int64_t tile = first; tile < point_tiles(args); tile += stride) {
    const int64_t row = range.row(), end = range.end;
    const uint32_t slot = next_slot, arrival = next_arrival;
    VoxelTable::Entry entry{kNone32, 0};
    uint64_t key;
    if (slot != kNone32) entry = work.table.entry(slot, &key);
    if (kCommon) {
      range = BlockRange::of(args, tile + stride);
      next_slot = range.row() < range.end ? work.slot[range.row()] : kNone32;
      next_arrival = range.row() < range.end ? work.arrival[range.row()] : 0;
    }
    if (slot != kNone32) {
      work.perm[int64_t{entry.count} + arrival] = static_cast<uint32_t>(row);
    }
    finish_point(args, work, row, end, entry.first, arrival, tally);
  }
  let_next_begin();
  tally.flush(work);
}

constexpr int64_t kFillBytes = 128;  // a thread of blocks that fill, at least

// Blocks that stay, tile after tile, for common calls; else one a tile.
unsigned point_blocks(const VoxelizeArgs& args, const VoxelWork& work, const CudaContext& context) {
  const unsigned tiles = static_cast<unsigned>(point_tiles(args));
  return work.common ? std::min(tiles, blocks_for(args.points.rows, kVoxelThreads, context.target,
                                                  kStayingBlocks))
                     : tiles;
}

template <class Real, bool kCommon = false>
cudaError_t launch_insert(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  return launch_after(insert_kernel<Real, kCommon>, point_blocks(args, work, context),
                      kVoxelThreads, context, args, work);
}

}  // namespace

cudaError_t insert_points(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  if (work.common) return launch_insert<float, true>(args, work, context);
  return args.points.dtype == DType::kDouble ? launch_insert<double>(args, work, context)
                                             : launch_insert<float>(args, work, context);
}

cudaError_t place_points(const VoxelizeArgs& args, const VoxelWork& work,
                         const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const int64_t capacity_bytes = args.capacity() * (20 + args.feature_row_bytes());
  const unsigned fill_blocks =
      blocks_for(capacity_bytes / kFillBytes, kVoxelThreads, context.target, 2);
  return launch_after(work.common ? place_kernel<true> : place_kernel<false>,
                      point_blocks(args, work, context) + fill_blocks, kVoxelThreads, context, args,
                      work, fill_blocks);
}

}  // namespace torchvox
