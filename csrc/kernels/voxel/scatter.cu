// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/scatter_common.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread an output element, channels fastest: the lanes of a warp share the row's list and read
// neighbouring channels of the same point.
template <class T>
__global__ void __launch_bounds__(kThreads) scatter_kernel(VoxelScatterArgs args) {
  const int64_t count = args.rows * args.channels;
  for (int64_t i = global_thread(); i < count; i += global_stride()) scatter_element<T>(args, i);
}

template <class T>
__global__ void __launch_bounds__(kThreads) gradient_kernel(VoxelScatterBackwardArgs args) {
  const int64_t count = args.points * args.channels;
  for (int64_t i = global_thread(); i < count; i += global_stride()) scatter_gradient<T>(args, i);
}

}  // namespace

cudaError_t launch(const VoxelScatterArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.rows * args.channels;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kThreads, context.target);
  with_point_type(args.dtype, [&](auto type) {
    scatter_kernel<decltype(type)><<<blocks, kThreads, 0, context.stream>>>(args);
  });
  return cudaGetLastError();
}

cudaError_t launch(const VoxelScatterBackwardArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.points * args.channels;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kThreads, context.target);
  with_point_type(args.dtype, [&](auto type) {
    gradient_kernel<decltype(type)><<<blocks, kThreads, 0, context.stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
