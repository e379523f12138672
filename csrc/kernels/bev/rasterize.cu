// SPDX-License-Identifier: Apache-2.0
//
// bev_rasterize on the GPU: integer atomics into the tables of cells, means, then all planes.
#include "csrc/kernels/bev/rasterize.h"
#include "csrc/kernels/bev/scatter.cuh"
#include "csrc/kernels/core/warp.cuh"

namespace torchvox {

// A cell's mean is a cascade over its points in input order; the blocks of 32 that it is made of
// are summed by as many lanes at once.
inline constexpr int kMeanWarps = kBevThreads / 32;
inline constexpr int kMeanBlock = 32;  // values that one lane sums
inline constexpr int64_t kMeanChunk = 32 * kMeanBlock;  // values that one warp sums
static_assert(kMeanChunk == kBevLargeCell, "a warp sums the blocks of 32 cells in one go");

// Sum, from +0 and left to right, of `count` <= 32 intensities listed from `first` on. All loads
// are in flight at once.
__device__ __forceinline__ float sum_block(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count) {
  int32_t rows[kMeanBlock];
#pragma unroll
  for (int k = 0; k < kMeanBlock; ++k) rows[k] = k < count ? args.cell_points[first + k] : 0;
  float values[kMeanBlock];
#pragma unroll
  for (int k = 0; k < kMeanBlock; ++k) values[k] = k < count ? args.intensity[rows[k]] : 0.f;
  float sum = 0.f;
#pragma unroll
  for (int k = 0; k < kMeanBlock; ++k) {
    if (k < count) sum += values[k];
  }
  return sum;
}

// Sum of `count` <= 1024 values, given the sums of their blocks of 32.
__device__ __forceinline__ void add_blocks(const float* blocks, int64_t count,
                                           CascadeSum<float>& sum) {
  for (int64_t k = 0; k < count; k += kMeanBlock) {
    sum.add_part(blocks[k / kMeanBlock], count - k >= kMeanBlock);
  }
}

// The sums of a warp's cells, one cell per lane, each of `count` <= 1024 values listed from `first`
// on. The lanes share the blocks of 32 values of all cells evenly.
__device__ __forceinline__ float sum_cells(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count, float (&sums)[32 * 32],
                                           uint8_t (&owners)[32 * 32]) {
  const unsigned all = 0xffffffffu;
  const int lane = threadIdx.x % 32;
  const int blocks = static_cast<int>(ceil_div<int64_t>(count, kMeanBlock));
  const int end = warp_inclusive(blocks);
  const int begin = end - blocks, tasks = __shfl_sync(all, end, 31);
  for (int k = begin; k < end; ++k) owners[k] = static_cast<uint8_t>(lane);
  __syncwarp();
  for (int base = 0; base < tasks; base += 32) {
    const int task = base + lane, owner = task < tasks ? owners[task] : 0;
    const int64_t from = __shfl_sync(all, first, owner), many = __shfl_sync(all, count, owner);
    const int64_t skip = int64_t{kMeanBlock} * (task - __shfl_sync(all, begin, owner));
    if (task < tasks) {
      sums[task] =
          sum_block(args, from + skip, many - skip < kMeanBlock ? many - skip : kMeanBlock);
    }
  }
  __syncwarp();
  CascadeSum<float> sum;
  add_blocks(&sums[begin], count, sum);
  return sum.total();
}

// The sum of one cell by a whole thread block: each thread sums a block of 32 values, each warp
// adds up its 32, the first thread adds those in order. `sums` is shared memory for one value per
// thread. Only the first thread returns the result.
__device__ __forceinline__ float sum_large(const BevRasterizeArgs& args, int64_t first,
                                           int64_t count, float* sums) {
  CascadeSum<float> sum;
  for (int64_t base = 0; base < count; base += kMeanWarps * kMeanChunk) {
    const int64_t left =
        count - base < kMeanWarps * kMeanChunk ? count - base : kMeanWarps * kMeanChunk;
    const int64_t mine = left - int64_t{kMeanBlock} * threadIdx.x;
    sums[threadIdx.x] = mine <= 0
        ? 0.f
        : sum_block(args, first + base + int64_t{kMeanBlock} * threadIdx.x,
                    mine < kMeanBlock ? mine : kMeanBlock);
    __syncthreads();
    float chunk = 0.f;
    if (threadIdx.x < left / kMeanChunk) {
      for (int k = 0; k < 32; ++k) chunk += sums[32 * threadIdx.x + k];
    }
    __syncwarp();
    if (threadIdx.x < left / kMeanChunk) sums[32 * threadIdx.x] = chunk;
    __syncwarp();
    if (threadIdx.x == 0) {
      for (int w = 0; w < left / kMeanChunk; ++w) sum.add_block<2>(sums[32 * w]);
      add_blocks(&sums[32 * (left / kMeanChunk)], left % kMeanChunk, sum);
    }
    __syncthreads();
  }
  return sum.total();
}

// Mean intensities of the cells with points, one thread per cell: reads the rows and intensities
// listed for the cell, writes its mean. Cells above kBevLargeCell points go into a list instead.
__global__ void __launch_bounds__(kBevThreads, 3)
    bev_mean_kernel(const __grid_constant__ BevRasterizeArgs args,
                    const __grid_constant__ BevRasterTables tables) {
  __shared__ float sums[kMeanWarps][32 * 32];
  __shared__ uint8_t owners[kMeanWarps][32 * 32];
  let_next_begin();
  wait_for_previous();
  const int64_t cell = global_thread();
  int64_t count = cell < tables.cells ? tables.count[cell] : 0;
  if (count > kBevLargeCell) {
    tables.large_cells[atomicAdd(tables.large_count, 1u)] = static_cast<int32_t>(cell);
    count = 0;
  }
  if (__all_sync(0xffffffffu, count == 0)) return;
  const int64_t first = count ? args.cell_offsets[cell] : 0;
  const int warp = threadIdx.x / 32;
  const float total = sum_cells(args, first, count, sums[warp], owners[warp]);
  if (count) tables.mean[cell] = quiet(total / static_cast<float>(count));
}

// Mean intensities of the listed large cells, one block per cell.
__global__ void __launch_bounds__(kBevThreads)
    bev_large_cells_kernel(const __grid_constant__ BevRasterizeArgs args,
                           const __grid_constant__ BevRasterTables tables) {
  __shared__ float sums[kBevThreads];
  let_next_begin();
  wait_for_previous();
  for (uint32_t g = blockIdx.x; g < *tables.large_count; g += gridDim.x) {
    const int64_t cell = tables.large_cells[g], count = tables.count[cell];
    const float sum = sum_large(args, args.cell_offsets[cell], count, sums);
    if (threadIdx.x == 0) tables.mean[cell] = quiet(sum / static_cast<float>(count));
  }
}

namespace {

struct DeviceRasterVisit {
  RasterVisit visit;

  __device__ bool prepare(const BevThread& thread) const { return thread.used(); }
  __device__ bool operator()(const BevThread& thread, bool used) const {
    return used && visit(thread.point, thread.row);
  }
};

// kWidth neighboring elements, aligned.
template <int kWidth>
__device__ __forceinline__ void load_group(const uint32_t* from, uint32_t (&group)[kWidth]) {
  if constexpr (kWidth == 4) {
    const uint4 quad = *reinterpret_cast<const uint4*>(from);
    group[0] = quad.x, group[1] = quad.y, group[2] = quad.z, group[3] = quad.w;
  } else {
    for (int k = 0; k < kWidth; ++k) group[k] = from[k];
  }
}

// The values of one plane in a group of cells, of which some may be empty.
template <int kWidth>
__device__ __forceinline__ void plane_values(const BevRasterizeArgs& args,
                                             const BevRasterTables& tables, const BevPlane& plane,
                                             int64_t cell, const uint64_t (&top)[kWidth],
                                             float (&values)[kWidth]) {
  // Slicings have most of the planes, so they come first: one load per plane, nothing else to wait
  // for.
  if (plane.channel == BevChannel::kOccupancy || plane.channel == BevChannel::kSlices) {
    uint32_t words[kWidth];
    load_group(sliced_row(tables, plane) + cell, words);
    for (int k = 0; k < kWidth; ++k) {
      values[k] = plane.channel == BevChannel::kOccupancy ? occupancy_value(plane, words[k])
                                                          : slice_value(args, words[k]);
    }
  } else {
    for (int k = 0; k < kWidth; ++k) {
      values[k] = plane_value(args, tables, plane, cell + k, top[k]);
    }
  }
}

constexpr int kPlanesPerThread = 8;

// One thread per kWidth cells and up to eight planes in turn: reads the tables, writes the image.
// The writes of a warp are consecutive in every plane, 16 bytes per thread when kWidth is 4 (which
// must divide grid.cells()). The arguments stay in constant memory, since planes are looked up by a
// run-time index.
template <int kWidth>
__global__ void __launch_bounds__(kBevThreads)
    planes_kernel(const __grid_constant__ BevRasterizeArgs args,
                  const __grid_constant__ BevRasterTables tables) {
  wait_for_previous();
  const int64_t plane_stride = args.grid.cells();
  const int first = blockIdx.y * kPlanesPerThread;
  const int last = min(first + kPlanesPerThread, args.planes.count);
  for (int64_t cell = kWidth * global_thread(); cell < tables.cells;
       cell += kWidth * global_stride()) {
    uint64_t top[kWidth], any = 0;
    for (int k = 0; k < kWidth; ++k) any |= top[k] = tables.top[cell + k];
    float* out = image_at(args, cell) + first * plane_stride;
    for (int p = first; p < last; ++p, out += plane_stride) {
      const BevPlane& plane = args.planes.plane[p];
      float values[kWidth];
      if (any) {
        plane_values(args, tables, plane, cell, top, values);
      } else {
        for (int k = 0; k < kWidth; ++k) values[k] = empty_value(args, plane);
      }
      if constexpr (kWidth == 4) {
        *reinterpret_cast<float4*>(out) = make_float4(values[0], values[1], values[2], values[3]);
      } else {
        for (int k = 0; k < kWidth; ++k) out[k] = values[k];
      }
    }
  }
}

// Clears the tables and `counts`, then enters all points.
cudaError_t fill_tables(const CloudBatch& points, const RasterVisit& visit, void* workspace,
                        BevFill counts, const CudaContext& context) {
  const int64_t bytes = visit.tables.zero_bytes;
  TORCHVOX_CUDA_CHECK(launch_clear(context, BevFill{workspace, bytes, 0}, counts));
  return launch_scatter(points, visit.grid, static_cast<int32_t*>(counts.data),
                        DeviceRasterVisit{visit}, context);
}

// One thread per point: reads the tables and the gradient of its cell's planes, writes the gradient
// of its row.
template <class T>
__global__ void __launch_bounds__(kBevThreads)
    backward_kernel(const __grid_constant__ BevRasterizeBackwardArgs args,
                    const __grid_constant__ BevRasterTables tables) {
  for (int64_t row = global_thread(); row < args.points.rows; row += global_stride()) {
    write_raster_gradient<T>(args, tables, row);
  }
}

}  // namespace

cudaError_t launch(const BevRasterizeArgs& args, void* workspace, const CudaContext& context) {
  const BevRasterTables tables(args.points, args.grid, args.planes, false, workspace);
  const BevFill counts{args.counts, count_bytes(args.points), 0};
  TORCHVOX_CUDA_CHECK(
      fill_tables(args.points, {tables, args.grid, args.intensity, args.planes, args.height_steps},
                  workspace, counts, context));
  if (tables.cells == 0) return cudaSuccess;
  if (tables.mean) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(tables.cells, kBevThreads));
    TORCHVOX_CUDA_CHECK(launch_after(bev_mean_kernel, blocks, kBevThreads, context, args, tables));
    const int64_t most_large = args.points.rows / kBevLargeCell;
    if (most_large > 0) {
      TORCHVOX_CUDA_CHECK(launch_after(bev_large_cells_kernel,
                                       blocks_for(most_large, 1, context.target, 1), kBevThreads,
                                       context, args, tables));
    }
  }
  const bool wide = args.grid.cells() % 4 == 0;
  const dim3 blocks(
      blocks_for(ceil_div<int64_t>(tables.cells, wide ? 4 : 1), kBevThreads, context.target),
      static_cast<unsigned>(ceil_div(args.planes.count, kPlanesPerThread)));
  return launch_after(wide ? planes_kernel<4> : planes_kernel<1>, blocks, kBevThreads, context,
                      args, tables);
}

cudaError_t launch(const BevRasterizeBackwardArgs& args, void* workspace,
                   const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const BevRasterTables tables(args.points, args.grid, args.planes, true, workspace);
  const BevFill unused{tables.counters, count_bytes(args.points), 0};
  TORCHVOX_CUDA_CHECK(fill_tables(args.points, {tables, args.grid, {}, args.planes, 1.}, workspace,
                                  unused, context));
  return with_point_type(args.points.dtype, [&](auto type) {
    return launch_items(backward_kernel<decltype(type)>, args.points.rows, kBevThreads, context,
                        args, tables);
  });
}

}  // namespace torchvox
