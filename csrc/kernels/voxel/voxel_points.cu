// SPDX-License-Identifier: Apache-2.0
//
// The two steps with one thread a point: into the table, and into its voxel's segment.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_points.cuh"
#include "csrc/kernels/voxel/voxel_scan.cuh"

namespace torchvox {
namespace {

// Reads x, y, z, finds the cell and adds the point to the table. Writes 8 bytes a point and touches
// one 32-byte sector of the table for each voxel of the warp.
template <class Real>
__global__ void __launch_bounds__(kVoxelThreads) insert_kernel(VoxelizeArgs args, VoxelWork work) {
  __shared__ BlockTally tally;
  const int64_t rows = args.points.rows;
  const int64_t begin = int64_t{blockIdx.x} * kVoxelThreads;
  const int64_t row = begin + threadIdx.x;
  BlockTally::begin(args.points, begin, rows - begin < kVoxelThreads ? rows : begin + kVoxelThreads,
                    tally);
  const auto point = load_point<Real>(args, work, row, rows, tally.samples);
  int column;
  const uint64_t key = locate_point(args, point, &column);
  tally.add<kPointsOutOfRange, kPointsNotFinite>(work, point.sample, column);
  uint32_t slot, arrival;
  insert_point(work, key, row, &slot, &arrival);
  if (row < rows) {
    work.slot[row] = slot;
    if (slot != kNone32) work.arrival[row] = arrival;
  }
  tally.flush(work);
}

// From a point's slot to its voxel's id and segment, and from there to its row. One random read of
// 8 bytes and one random write of 4.
__global__ void __launch_bounds__(kVoxelThreads) place_kernel(VoxelizeArgs args, VoxelWork work) {
  __shared__ BlockTally tally;
  const int64_t rows = args.points.rows;
  const int64_t begin = int64_t{blockIdx.x} * kVoxelThreads;
  const int64_t i = begin + threadIdx.x;
  BlockTally::begin(args.points, begin, rows - begin < kVoxelThreads ? rows : begin + kVoxelThreads,
                    tally);
  uint32_t id = kNone32, arrival = 0;
  if (i < rows) {
    const uint32_t slot = work.slot[i];
    if (slot != kNone32) {
      uint64_t key;
      const VoxelTable::Entry entry = work.table.entry(slot, &key);
      arrival = work.arrival[i];
      work.perm[int64_t{entry.count} + arrival] = static_cast<uint32_t>(i);
      id = entry.first;
    }
  }
  finish_point(args, work, i, rows, id, arrival, tally);
  tally.flush(work);
  if (is_last_block(&work.counters->place_done, gridDim.x)) write_counts(args, work);
}

unsigned point_blocks(const VoxelizeArgs& args) {
  return static_cast<unsigned>(ceil_div<int64_t>(args.points.rows, kVoxelThreads));
}

}  // namespace

cudaError_t insert_points(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  if (args.points.dtype == DType::kDouble) {
    insert_kernel<double><<<point_blocks(args), kVoxelThreads, 0, context.stream>>>(args, work);
  } else {
    insert_kernel<float><<<point_blocks(args), kVoxelThreads, 0, context.stream>>>(args, work);
  }
  return cudaGetLastError();
}

cudaError_t place_points(const VoxelizeArgs& args, const VoxelWork& work,
                         const CudaContext& context) {
  const unsigned blocks = args.points.rows == 0 ? 1 : point_blocks(args);
  place_kernel<<<blocks, kVoxelThreads, 0, context.stream>>>(args, work);
  return cudaGetLastError();
}

}  // namespace torchvox
