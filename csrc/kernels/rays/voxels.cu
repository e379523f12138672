// SPDX-License-Identifier: Apache-2.0
//
// ray_voxels on the GPU: one thread per ray counts its visits, CUB sums the counts, one thread per
// ray writes its visits.
#include <cub/device/device_scan.cuh>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/rays/voxels.h"

namespace torchvox {
namespace {

constexpr int kThreads = 128;

// One thread per ray: reads it, writes its number of visits, and counts it if it is skipped.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ RayVoxelsArgs args) {
  const int64_t rays = args.rays.points.rows;
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first <= rays; first += global_stride()) {
    const int64_t i = first + threadIdx.x;
    RayStatus status = kRayPadding;
    if (i < rays) args.offsets[i] = count_visits(args, i, &status);
    if (i == rays) args.offsets[i] = 0;
    count_skipped(status, args.counts);
  }
}

// One thread per ray: walks it again and writes its visits; all threads then write the unused rows,
// the first one the counts.
__global__ void __launch_bounds__(kThreads)
    write_kernel(const __grid_constant__ RayVoxelsArgs args) {
  for (int64_t i = global_thread(); i < args.rays.points.rows; i += global_stride()) {
    write_visits(args, i);
  }
  const int64_t kept = args.kept();
  for (int64_t row = kept + global_thread(); row < args.max_out; row += global_stride()) {
    write_visit(args, row, -1, nullptr, 0, 0);
  }
  if (global_thread() == 0) {
    args.counts[0] = kept;
    args.counts[1] = args.offsets[args.rays.points.rows];
  }
}

cudaError_t sum_visits(const RayVoxelsArgs& args, void* storage, size_t& bytes,
                       cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(storage, bytes, args.offsets, args.offsets,
                                       args.rays.points.rows + 1, stream);
}

}  // namespace

int64_t workspace_bytes_cuda(const RayVoxelsArgs& args, const Target&) {
  size_t bytes = 0;
  sum_visits(args, nullptr, bytes, nullptr);
  return static_cast<int64_t>(bytes);
}

cudaError_t launch(const RayVoxelsArgs& args, void* workspace, const CudaContext& context) {
  const int64_t rays = args.rays.points.rows;
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(args.counts, 0, kRayCounts * sizeof(int64_t), context.stream));
  TORCHVOX_CUDA_CHECK(launch_items(count_kernel, rays + 1, kThreads, context, args));
  size_t bytes = static_cast<size_t>(workspace_bytes_cuda(args, context.target));
  TORCHVOX_CUDA_CHECK(sum_visits(args, workspace, bytes, context.stream));
  return launch_items(write_kernel, std::max(rays, args.max_out) + 1, kThreads, context, args);
}

}  // namespace torchvox
