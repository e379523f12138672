// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/neighbour_distance_common.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread an element, of the points first and then of the queries.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(NeighbourDistanceArgs args, int64_t of_points, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) {
    if (i < of_points) {
      point_gradient<T>(args, i);
    } else {
      query_gradient<T>(args, i - of_points);
    }
  }
}

}  // namespace

cudaError_t launch(const NeighbourDistanceArgs& args, void*, const CudaContext& context) {
  const int64_t of_points = args.grad_points ? args.clouds * args.rows * args.dims : 0;
  const int64_t count = of_points + (args.grad_query ? args.clouds * args.queries * args.dims : 0);
  if (count == 0) return cudaSuccess;
  with_point_type(args.dtype, [&](auto type) {
    gradients_kernel<decltype(type)>
        <<<blocks_for(count, kThreads, context.target), kThreads, 0, context.stream>>>(
            args, of_points, count);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
