// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_sort.cuh"

namespace torchvox {
namespace {

// One launch that ends at once when no segment is long.
__global__ void __launch_bounds__(kVoxelThreads) sort_kernel(VoxelizeArgs args, VoxelWork work) {
  __shared__ uint32_t values[kSortChunk];
  order_long_segments(args, work, values);
}

}  // namespace

cudaError_t sort_segments(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  const int64_t most_tasks = args.points.rows / 448 + 1;
  const unsigned blocks = blocks_for(most_tasks * kVoxelThreads, kVoxelThreads, context.target,
                                     /*per_multiprocessor=*/2);
  sort_kernel<<<blocks, kVoxelThreads, 0, context.stream>>>(args, work);
  return cudaGetLastError();
}

}  // namespace torchvox
