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

// The kernel before the others of a chain, which count and scan.
__global__ void __launch_bounds__(kThreads)
    clear_kernel(int32_t* counts, int64_t numbers, uint64_t* status, int64_t tiles) {
  for (int64_t i = global_thread(); i < numbers; i += global_stride()) counts[i] = 0;
  for (int64_t i = global_thread(); i < tiles; i += global_stride()) status[i] = ~uint64_t{0};
}
cudaError_t launch_clear(int32_t* counts, int64_t numbers, uint64_t* status, int64_t tiles,
                         const CudaContext& context) {
  return launch_items(clear_kernel, std::max(numbers, tiles), kThreads, context, counts, numbers,
                      status, tiles);
}

// A block writes rows next to each other, neighboring threads neighboring elements: element c of
// the k-th row is value(k, c).
template <class Value>
__device__ __forceinline__ void write_rows(float* to, int64_t rows, int64_t columns,
                                           const Value& value) {
  const int64_t row_step = divide(kThreads, columns), step = kThreads - row_step * columns;
  int64_t row = divide(threadIdx.x, columns), c = threadIdx.x - row * columns;
  for (int64_t i = threadIdx.x; i < rows * columns; i += kThreads) {
    to[i] = value(row, c);
    row += row_step;
    c += step;
    if (c >= columns) {
      c -= columns;
      ++row;
    }
  }
}
__device__ __forceinline__ void write_zero_rows(float* to, int64_t rows, int64_t columns) {
  for (int64_t i = threadIdx.x; i < rows * columns; i += kThreads) to[i] = 0;
}

// One thread per row of a slot, the sweeps along the grid's y.
__global__ void __launch_bounds__(kThreads, 6)
    merge_kernel(const __grid_constant__ MergeSweepsArgs args) {
  __shared__ Sweep sweep;
  __shared__ int32_t sums[32];
  __shared__ float moved[kThreads][3];
  const int64_t position = blockIdx.y, begin = int64_t{blockIdx.x} * kThreads;
  const int64_t capacity = args.sweeps.rows, columns = args.columns();
  Sweep own = {};
  if (threadIdx.x < args.positions) own = sweep_at(args, threadIdx.x);
  int32_t total;
  own.first = block_prefix(own.rows, sums, &total);
  if (threadIdx.x == position) sweep = own;
  __syncthreads();
  if (begin + position + threadIdx.x == 0) *args.num_points = total;
  SweepCount column = kSweepRows;
  if (position < args.positions) {
    const int64_t slot = sweep.slot, i = begin + threadIdx.x;
    if (i < sweep.rows) {
      column = move_point(args, slot, i, sweep_row(args, slot, i), moved[threadIdx.x]);
    }
    __syncthreads();
    const int64_t end = begin + kThreads < capacity ? begin + kThreads : capacity;
    const int64_t points_end = clamp_index(sweep.rows, begin, end);
    write_rows(args.points + (sweep.first + begin) * columns, points_end - begin, columns,
               [&](int64_t row, int64_t c) {
                 return merged_value(args, slot, sweep_row(args, slot, begin + row), moved[row], c);
               });
    if (points_end < end) {
      const int64_t to =
          packed_row(false, sweep.first + sweep.rows, position * capacity + end - 1, args.rows());
      write_zero_rows(args.points + to * columns, end - points_end, columns);
    }
  }
  wait_for_previous();
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
  __shared__ uint8_t kept_rows[kThreads];
  wait_for_previous();
  const int64_t ticket = block_ticket(reinterpret_cast<uint32_t*>(memory));
  const int64_t tiles = args.tiles(), b = divide(ticket, tiles), tile = ticket - b * tiles;
  const int64_t rows = args.points.rows, columns = args.points.columns, begin = tile * kThreads;
  const CropCount column = args.column(b, begin + threadIdx.x);
  int32_t kept;
  const int32_t at = block_prefix(int32_t{column == kCropKept}, sums, &kept);
  if (column == kCropKept) kept_rows[at] = static_cast<uint8_t>(threadIdx.x);
  const auto before = static_cast<int64_t>(tile_prefix(memory + 1 + b * tiles, tile, kept, scan));
  float* const out = args.out + b * rows * columns;
  write_rows(out + before * columns, kept, columns,
             [&](int64_t row, int64_t c) { return args.row(b, begin + kept_rows[row])[c]; });
  const int64_t end = begin + kThreads < rows ? begin + kThreads : rows;
  const int64_t dropped = end - begin - kept;
  write_zero_rows(out + (rows - (end - before - kept)) * columns, dropped, columns);
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
  const int64_t numbers = (1 + args.sweeps.clouds) * kSweepCounts;
  TORCHVOX_CUDA_CHECK(launch_clear(args.counts, numbers, nullptr, 0, context));
  const auto blocks = static_cast<unsigned>(args.sweeps.rows / kThreads + 1);
  const auto sweeps = static_cast<unsigned>(std::max<int64_t>(1, args.positions));
  return launch_after(merge_kernel, dim3(blocks, sweeps), kThreads, context, args);
}

cudaError_t launch(const CropPointsArgs& args, void* memory, const CudaContext& context) {
  const int64_t clouds = args.points.clouds, blocks = clouds * args.tiles();
  auto* const status = static_cast<uint64_t*>(memory);
  TORCHVOX_CUDA_CHECK(
      launch_clear(args.counts, (1 + clouds) * kCropCounts, status, 1 + blocks, context));
  if (clouds == 0) return cudaSuccess;
  return launch_after(crop_kernel, static_cast<unsigned>(blocks), kThreads, context, args, status);
}

}  // namespace torchvox
