// SPDX-License-Identifier: Apache-2.0
//
// merge_sweeps and crop_points on the GPU, one kernel each.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/rays/sweeps.h"
#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = kScanThreads;
static_assert(kThreads >= kMostSweeps && kThreads == kCropTile, "one thread per sweep and per row");

// One thread per row of a slot, the sweeps along the grid's y.
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ MergeSweepsArgs args) {
  __shared__ Sweep sweep;
  __shared__ int32_t sums[32];
  const int64_t position = blockIdx.y, i = global_thread();
  Sweep own = {};
  if (threadIdx.x < args.positions) own = sweep_at(args, threadIdx.x);
  int32_t total;
  own.first = block_prefix(own.rows, sums, &total);
  if (threadIdx.x == position) sweep = own;
  __syncthreads();
  if (i == 0 && position == 0) *args.num_points = total;
  const bool is_row = i < args.sweeps.rows && position < args.positions;
  const SweepCount column = is_row ? merge_row(args, sweep, position, i) : kSweepRows;
  for (int k = kSweepKept; k < kSweepCounts; ++k) {
    const int n = __syncthreads_count(column == k);
    if (threadIdx.x == 0) count_rows<kSweepCounts>(args.counts, sweep.slot, k, n);
  }
}

// One block per tile of a cloud, one thread per row: finds how many rows of the cloud are kept
// before it, and writes it.
__global__ void __launch_bounds__(kThreads)
    crop_kernel(const __grid_constant__ CropPointsArgs args, uint64_t* memory) {
  __shared__ ScanShared scan;
  __shared__ int32_t sums[32];
  const int64_t ticket = block_ticket(reinterpret_cast<uint32_t*>(memory));
  const int64_t tiles = args.tiles(), b = divide(ticket, tiles), tile = ticket - b * tiles;
  const int64_t i = tile * kThreads + threadIdx.x;
  const CropCount column = args.column(b, i);
  int32_t kept;
  const int32_t at = block_prefix(int32_t{column == kCropKept}, sums, &kept);
  const auto before = static_cast<int64_t>(tile_prefix(memory + 1 + b * tiles, tile, kept, scan));
  if (i < args.points.rows) args.write(b, i, column == kCropKept, before + at);
  if (threadIdx.x == 0 && tile == tiles - 1) {
    args.num_points[b] = static_cast<int32_t>(before + kept);
  }
  for (int k = kCropKept; k < kCropCounts; ++k) {
    const int n = __syncthreads_count(column == k);
    if (threadIdx.x == 0) count_rows<kCropCounts>(args.counts, b, k, n);
  }
}

}  // namespace

cudaError_t launch(const MergeSweepsArgs& args, void*, const CudaContext& context) {
  const int64_t bytes = (1 + args.sweeps.clouds) * kSweepCounts * 4;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, bytes, context.stream));
  const auto blocks = static_cast<unsigned>(args.sweeps.rows / kThreads + 1);
  const auto sweeps = static_cast<unsigned>(std::max<int64_t>(1, args.positions));
  return launch_blocks(merge_kernel, dim3(blocks, sweeps), kThreads, context.stream, args);
}

cudaError_t launch(const CropPointsArgs& args, void* memory, const CudaContext& context) {
  const int64_t clouds = args.points.clouds, blocks = clouds * args.tiles();
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(args.counts, 0, (1 + clouds) * kCropCounts * 4, context.stream));
  if (clouds == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(memory, 0xff, 8 * (1 + blocks), context.stream));
  return launch_blocks(crop_kernel, static_cast<unsigned>(blocks), kThreads, context.stream, args,
                       static_cast<uint64_t*>(memory));
}

}  // namespace torchvox
