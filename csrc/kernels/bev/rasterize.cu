// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/bev/mean.cuh"
#include "csrc/kernels/bev/rasterize_common.h"
#include "csrc/kernels/bev/scatter.cuh"

namespace torchvox {
namespace {

template <class T>
__global__ void __launch_bounds__(kBevThreads) cells_kernel(BevCellsArgs args) {
  for (int64_t row = global_thread(); row < args.points.rows; row += global_stride()) {
    args.point_cell[row] = flat_cell<T>(args.points, args.grid, row);
  }
}

struct DeviceRasterVisit {
  RasterVisit visit;

  __device__ bool prepare(const BevThread& thread) const { return thread.used(); }
  __device__ bool operator()(const BevThread& thread, bool used) const {
    return used && visit(thread.point, thread.row);
  }
};

// kWidth neighbouring elements, aligned.
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
  // Slicings have most planes: one load a plane, and nothing else to wait for.
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

// One thread a group of cells and a few planes in turn: the writes of a warp are consecutive in
// every plane, 16 bytes a thread when kWidth is 4 (which must divide grid.cells()). The arguments
// stay in constant memory, since planes are looked up by a run-time index.
constexpr int kPlanesPerThread = 8;

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

// The scatter over tables that it first clears.
cudaError_t fill_tables(const PackedPoints& points, const RasterVisit& visit, void* workspace,
                        BevFill counts, const CudaContext& context) {
  const int64_t bytes = visit.tables.zero_bytes;
  TORCHVOX_CUDA_CHECK(launch_clear(context, BevFill{workspace, bytes, 0}, counts));
  return launch_scatter(points, visit.grid, static_cast<int32_t*>(counts.data),
                        DeviceRasterVisit{visit}, context);
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
  const BevFill counts{args.counts, count_bytes(args.points), 0};
  TORCHVOX_CUDA_CHECK(
      fill_tables(args.points, {tables, args.grid, args.intensity, args.planes, args.height_steps},
                  workspace, counts, context));
  if (tables.cells == 0) return cudaSuccess;
  if (tables.mean) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(tables.cells, kBevThreads));
    TORCHVOX_CUDA_CHECK(launch_after(bev_mean_kernel, blocks, kBevThreads, context, args, tables));
    const int64_t most_giants = args.points.rows / kBevGiant;
    if (most_giants > 0) {
      TORCHVOX_CUDA_CHECK(launch_after(bev_giants_kernel,
                                       blocks_for(most_giants, 1, context.target, 1), kBevThreads,
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
  const unsigned blocks = blocks_for(args.points.rows, kBevThreads, context.target);
  with_point_type(args.points.dtype, [&](auto type) {
    backward_kernel<decltype(type)><<<blocks, kBevThreads, 0, context.stream>>>(args, tables);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
