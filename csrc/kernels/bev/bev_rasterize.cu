// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/bev/bev_rasterize_common.h"
#include "csrc/kernels/bev/bev_scatter.cuh"

namespace torchvox {
namespace {

template <class T>
__global__ void __launch_bounds__(kBevThreads) cells_kernel(BevCellsArgs args) {
  for (int64_t row = global_thread(); row < args.points.rows; row += global_stride()) {
    args.point_cell[row] = flat_cell<T>(args.points, args.grid, row);
  }
}

// One thread a cell, planes in turn: the writes of a warp are consecutive in every plane. The
// arguments stay in constant memory, since planes are looked up by a run-time index.
__global__ void __launch_bounds__(kBevThreads)
    planes_kernel(const __grid_constant__ BevRasterizeArgs args,
                  const __grid_constant__ BevRasterTables tables) {
  for (int64_t cell = global_thread(); cell < tables.cells; cell += global_stride()) {
    write_planes(args, tables, cell);
  }
  if (blockIdx.x == 0 && threadIdx.x < kBevCounts) {
    write_count_column(threadIdx.x, tables.counters, args.points.batches, args.counts);
  }
}

template <class T>
__global__ void __launch_bounds__(kBevThreads)
    backward_kernel(const __grid_constant__ BevRasterizeBackwardArgs args,
                    const __grid_constant__ BevRasterTables tables) {
  for (int64_t row = global_thread(); row < args.points.rows; row += global_stride()) {
    write_raster_gradient<T>(args, tables, row);
  }
}

}  // namespace

cudaError_t launch(const BevCellsArgs& args, void*, const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(args.points.rows, kBevThreads, context.target);
  with_point_type(args.points.dtype, [&](auto type) {
    cells_kernel<decltype(type)><<<blocks, kBevThreads, 0, context.stream>>>(args);
  });
  return cudaGetLastError();
}

cudaError_t launch(const BevRasterizeArgs& args, void* workspace, const CudaContext& context) {
  const BevRasterTables tables(args.points, args.grid, args.planes, false, workspace);
  if (tables.bytes > 0) {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(workspace, 0, tables.bytes, context.stream));
  }
  TORCHVOX_CUDA_CHECK(
      launch_scatter(args.points, args.grid, tables.counters,
                     RasterVisit{tables, args.grid, args.intensity, args.planes, args.height_steps},
                     context.stream));
  const unsigned blocks = blocks_for(tables.cells, kBevThreads, context.target);
  planes_kernel<<<blocks, kBevThreads, 0, context.stream>>>(args, tables);
  return cudaGetLastError();
}

cudaError_t launch(const BevRasterizeBackwardArgs& args, void* workspace,
                   const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const BevRasterTables tables(args.points, args.grid, args.planes, true, workspace);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(workspace, 0, tables.bytes, context.stream));
  TORCHVOX_CUDA_CHECK(launch_scatter(args.points, args.grid, tables.counters,
                                     RasterVisit{tables, args.grid, {}, args.planes, 1.},
                                     context.stream));
  const unsigned blocks = blocks_for(args.points.rows, kBevThreads, context.target);
  with_point_type(args.points.dtype, [&](auto type) {
    backward_kernel<decltype(type)><<<blocks, kBevThreads, 0, context.stream>>>(args, tables);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
