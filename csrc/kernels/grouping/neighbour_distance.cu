// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/neighbour_distance_common.h"
#include "csrc/kernels/grouping/slot_sum.cuh"

namespace torchvox {
namespace {

// One thread an axis of a query. Its slots are consecutive; their points are read ahead.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    queries_kernel(const __grid_constant__ NeighbourDistanceArgs args) {
  using Number = compute_t<T>;
  constexpr int kAhead = 8;
  const int64_t query = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (query >= args.queries) return;
  const int64_t rows = args.lists.rows;
  for (int64_t cloud = blockIdx.y; cloud < args.lists.clouds; cloud += gridDim.y) {
    const int64_t at = cloud * args.queries + query, first = at * args.k;
    const Number* const grad = static_cast<const Number*>(args.grad) + first;
    for (int64_t axis = threadIdx.x; axis < args.dims; axis += blockDim.x) {
      const T* const points = static_cast<const T*>(args.points) + cloud * rows * args.dims + axis;
      const Number mine = widen(static_cast<const T*>(args.query)[at * args.dims + axis]);
      ChunkedSum<Lanes<Number, 1>> sum;
      for (int64_t slot = 0; slot < args.k; slot += kAhead) {
        Number term[kAhead] = {};
        int64_t row[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          row[k] = slot + k < args.k ? args.idx[first + slot + k] : -1;
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (row[k] < 0 || row[k] >= rows) continue;
          const Number difference = mine - widen(points[row[k] * args.dims]);
          term[k] = distance_gradient(args.norm, grad[slot + k], difference);
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (slot + k < args.k) sum.add({{term[k]}});
        }
      }
      store_items<T, 1>(static_cast<T*>(args.grad_query) + at * args.dims + axis, sum.total());
    }
  }
}

template <class T>
cudaError_t launch_type(const NeighbourDistanceArgs& args, void* workspace,
                        const CudaContext& context) {
  const SlotLists& lists = args.lists;
  if (args.grad_points && lists.clouds * lists.rows > 0) {
    TORCHVOX_CUDA_CHECK((launch_sums<DistanceGradient<T>, false>(args, workspace, context)));
  }
  if (!args.grad_query || lists.clouds * args.queries == 0) return cudaSuccess;
  const dim3 block = block_of(args.dims);
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.queries, block.y)),
                  grid_y(lists.clouds));
  queries_kernel<T><<<grid, block, 0, context.stream>>>(args);
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
