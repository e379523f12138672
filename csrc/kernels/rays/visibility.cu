// SPDX-License-Identifier: Apache-2.0
//
// ray_visibility on the GPU: one thread per ray. Bytes are read before they are written, so that
// most visits of a busy voxel need only a cached read.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/rays/visibility.h"

namespace torchvox {
namespace {

constexpr int kThreads = 128;

// Warps add up the counts of a sample, blocks those of the call.
__device__ void count_rays(const RayVisibilityArgs& args, int64_t sample, VisibilityCount column) {
  for (int c = 0; c < kVisibilityCounts; ++c) {
    const bool counts = sample >= 0 &&
        (c == column || c == kVisibilityGiven || (c == kVisibilityWalked && is_walked(column)));
    const int n = __syncthreads_count(counts);
    if (threadIdx.x == 0 && n > 0) atomicAdd(&args.counts[c], n);
    const unsigned same = __match_any_sync(kFullWarp, counts ? sample : int64_t{-1});
    if (counts && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(same)) - 1) {
      atomicAdd(&args.counts[(sample + 1) * kVisibilityCounts + c], __popc(same));
    }
  }
}

// One thread per ray: reads it, marks the voxels that it passes as free, writes its status and its
// end, and counts it.
template <class Real>
__global__ void __launch_bounds__(kThreads)
    see_kernel(const __grid_constant__ RayVisibilityArgs args) {
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < args.points.rows;
       first += global_stride()) {
    const int64_t row = first + threadIdx.x;
    const int64_t sample = row < args.points.rows ? args.points.packed_owner(row) : -1;
    VisibilityCount column = kVisibilityCounts;
    if (row < args.points.rows) column = see<Real>(args, row, sample);
    count_rays(args, sample, column);
  }
}

}  // namespace

cudaError_t launch(const RayVisibilityArgs& given, void* memory, const CudaContext& context) {
  RayVisibilityArgs args = given;
  args.end = static_cast<int64_t*>(memory);
  const int64_t counts = (args.points.clouds + 1) * kVisibilityCounts;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, counts * 4, context.stream));
  if (args.volume() > 0) {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.visibility, 0, args.volume(), context.stream));
  }
  TORCHVOX_CUDA_CHECK(with_compute_type(args.points.dtype, [&](auto real) {
    return launch_items(see_kernel<decltype(real)>, args.points.rows, kThreads, context, args);
  }));
  return launch_elements<mark_end>(args, args.points.rows, context);
}

}  // namespace torchvox
