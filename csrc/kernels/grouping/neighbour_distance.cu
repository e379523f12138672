// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/neighbour_distance_common.h"
#include "csrc/kernels/grouping/slot_sum.cuh"

namespace torchvox {
namespace {

// One thread an element: its slots are consecutive, and their points mostly in the cache.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    queries_kernel(const __grid_constant__ NeighbourDistanceArgs args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) query_gradient<T>(args, i);
}

template <class T>
cudaError_t launch_type(const NeighbourDistanceArgs& args, void* workspace,
                        const CudaContext& context) {
  const SlotLists& lists = args.lists;
  if (args.grad_points && lists.clouds * lists.rows > 0) {
    TORCHVOX_CUDA_CHECK(launch_short_rows<DistanceGradient<T>>(args, false, context));
    TORCHVOX_CUDA_CHECK(launch_long_rows<DistanceGradient<T>>(args, workspace, context));
  }
  const int64_t count = lists.clouds * args.queries * args.dims;
  if (!args.grad_query || count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kSumThreads, context.target);
  queries_kernel<T><<<blocks, kSumThreads, 0, context.stream>>>(args, count);
  return cudaGetLastError();
}

}  // namespace

int64_t workspace_bytes_cuda(const NeighbourDistanceArgs& args) {
  if (!args.grad_points) return 0;
  return with_point_type(args.dtype, [&](auto type) {
    return partial_sums_bytes<DistanceGradient<decltype(type)>>(args);
  });
}

cudaError_t launch(const NeighbourDistanceArgs& args, void* workspace, const CudaContext& context) {
  return with_point_type(
      args.dtype, [&](auto type) { return launch_type<decltype(type)>(args, workspace, context); });
}

}  // namespace torchvox
