// SPDX-License-Identifier: Apache-2.0
//
// The two steps with one thread a point: into the table, and into its voxel's segment.
#include <type_traits>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxelize/points.cuh"

namespace torchvox {
namespace {

// The points [begin, end) of a block, one a thread.
struct BlockRange {
  int64_t begin;
  int64_t end;

  __device__ static BlockRange of_block(const VoxelizeArgs& args) {
    const int64_t begin = int64_t{blockIdx.x} * kVoxelThreads;
    const int64_t rest = args.points.rows - begin;
    return {begin, rest < kVoxelThreads ? args.points.rows : begin + kVoxelThreads};
  }
};

// Reads x, y, z, finds the cell and adds the point to the table. Writes 8 bytes a point and touches
// one 32-byte sector of the table for each voxel of the warp. One point a thread: blocks that come
// later find the voxels of earlier ones in the table.
template <class Real, bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) insert_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ BlockTally tally;
  const BlockRange range = BlockRange::of_block(args);
  const int64_t row = range.begin + threadIdx.x;
  BlockTally::begin(args.points, range.begin, range.end, tally);
  const LoadedPoint<Real> point = load_point<Real>(args, work, row, range.end, tally.samples);
  using Key = std::conditional_t<kCommon, uint32_t, uint64_t>;  // a common key is short
  int column;
  const Key key = static_cast<Key>(locate_point(args, point, &column));
  const MatchingLanes matching = MatchingLanes::of(key);
  wait_for_previous();
  tally.add<kPointsOutOfRange, kPointsNotFinite>(work, point.sample, column);
  VoxelTable::Insertion added{kNone32, 0, false};
  if (key != static_cast<Key>(kNone64) && matching.leads()) {
    added = work.table.insert(key, static_cast<uint32_t>(row), matching.count());
  }
  const unsigned maybe_first = __ballot_sync(0xffffffffu, added.lowest);
  if (threadIdx.x % 32 == 0 && row < range.end) work.maybe_first[row / 32] = maybe_first;
  const uint32_t slot = matching.of_leader(added.slot);
  const uint32_t before = matching.of_leader(added.before);
  if (row < range.end) {
    work.slot[row] = slot;
    // How many points of the voxel came before, in no order.
    work.arrival[row] = before + matching.earlier();
  }
  let_next_begin();
  tally.flush(work);
}

// From a point's slot to its voxel's id and segment, and from there to its row. One random read of
// 16 bytes and one random write of 4.
template <bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) place_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ BlockTally tally;
  const BlockRange range = BlockRange::of_block(args);
  const int64_t row = range.begin + threadIdx.x;
  BlockTally::begin(args.points, range.begin, range.end, tally);
  wait_for_previous();
  const uint32_t slot = row < range.end ? work.slot[row] : kNone32;
  const uint32_t arrival = row < range.end ? work.arrival[row] : 0;
  VoxelTable::Entry entry{kNone32, 0};
  if (slot != kNone32) {
    uint64_t key;
    entry = work.table.entry(slot, &key);
    work.perm[int64_t{entry.count} + arrival] = static_cast<uint32_t>(row);
  }
  finish_point(args, work, row, range.end, entry.first, arrival, tally);
  let_next_begin();
  tally.flush(work);
}

unsigned point_blocks(const VoxelizeArgs& args) {
  return static_cast<unsigned>(ceil_div<int64_t>(args.points.rows, kVoxelThreads));
}

template <class Real, bool kCommon = false>
cudaError_t launch_insert(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  return launch_after(insert_kernel<Real, kCommon>, point_blocks(args), kVoxelThreads, context,
                      args, work);
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
  return launch_after(work.common ? place_kernel<true> : place_kernel<false>, point_blocks(args),
                      kVoxelThreads, context, args, work);
}

}  // namespace torchvox
