// SPDX-License-Identifier: Apache-2.0
//
// Segment sums of gathers and interpolations on the GPU: the choice of an instance of
// segment_sum.cuh by type, layout and the width of an access. And the gradients of neighbor
// distances: by the points they are such a segment sum over the inverse index.
#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/kernels/grouping/segment_sum.cuh"

namespace torchvox {
namespace {

// One thread per axis of a query: reads the slots of the query, their gradients and points, writes
// the sum. Points are read ahead; a slot that names none reads the first point instead.
template <class T, class Index>
__global__ void __launch_bounds__(kRowThreads)
    queries_kernel(const Index* __restrict__ idx, const T* __restrict__ all_points,
                   const __grid_constant__ NeighborDistanceArgs args) {
  using Number = compute_t<T>;
  constexpr int kAhead = 8;
  const int64_t query = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (query >= args.queries) return;
  const int64_t rows = args.inverse.rows;
  for (int64_t cloud = blockIdx.y; cloud < args.inverse.clouds; cloud += gridDim.y) {
    const int64_t at = cloud * args.queries + query;
    const Index* const __restrict__ slots = idx + at * args.k;
    const Number* const __restrict__ grad = static_cast<const Number*>(args.grad) + at * args.k;
    for (int64_t axis = threadIdx.x; axis < args.dims; axis += blockDim.x) {
      const T* const points = all_points + cloud * rows * args.dims + axis;
      const Number mine = widen(static_cast<const T*>(args.query)[at * args.dims + axis]);
      ChunkedSum<Channels<Number, 1>> sum;
      for (int64_t slot = 0; rows > 0 && slot < args.k; slot += kAhead) {
        Index row[kAhead];
        Number term[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const int64_t s = slot + k < args.k ? slot + k : args.k - 1;
          row[k] = __ldg(slots + s);
          term[k] = __ldg(grad + s);
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const bool named = row[k] >= 0 && row[k] < rows;
          const Number point = widen_item(points[(named ? row[k] : 0) * args.dims]);
          term[k] = named ? distance_gradient(args.norm, term[k], mine - point) : Number(0);
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

template <class T, class Index>
cudaError_t launch_queries(const NeighborDistanceArgs& args, cudaStream_t stream) {
  const dim3 block = block_of(args.dims);
  const dim3 grid(grid_x(ceil_div<int64_t>(args.queries, block.y)), grid_y(args.inverse.clouds));
  return launch_blocks(queries_kernel<T, Index>, grid, block, stream,
                       static_cast<const Index*>(args.idx.data), static_cast<const T*>(args.points),
                       args);
}

// One instance; channel-last rows move in words where alignment allows.
template <class T, int kWidth, bool kWeighted, bool kRowsOnX>
struct Sums {
  using Gradient = SegmentGradient<T, kWidth, kWeighted>;
  static int64_t bytes(const SegmentSumArgs& args) { return partial_sums_bytes<Gradient>(args); }
  static cudaError_t launch(const SegmentSumArgs& args, void* workspace,
                            const CudaContext& context) {
    return launch_sums<Gradient, kRowsOnX>(args, workspace, context);
  }
};

template <class T, bool kWeighted, class Body>
auto with_width(const SegmentSumArgs& args, Body&& body) {
  constexpr int kWidth = kItemsPerWord<T>;
  if (args.channels_first) return body(Sums<T, 1, kWeighted, true>{});
  const bool in_words =
      args.channels % kWidth == 0 && is_aligned(args.grad) && is_aligned(args.out);
  return in_words ? body(Sums<T, kWidth, kWeighted, false>{})
                  : body(Sums<T, 1, kWeighted, false>{});
}

template <class Body>
auto with_sums(const SegmentSumArgs& args, Body&& body) {
  return with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    return args.weight ? with_width<T, true>(args, body) : with_width<T, false>(args, body);
  });
}

}  // namespace

int64_t workspace_bytes_cuda(const NeighborDistanceArgs& args, const Target&) {
  if (!args.grad_points) return 0;
  return with_point_type(args.dtype, [&](auto type) {
    return partial_sums_bytes<DistanceGradient<decltype(type)>>(args);
  });
}

cudaError_t launch(const NeighborDistanceArgs& args, void* workspace, const CudaContext& context) {
  const InverseIndex& inverse = args.inverse;
  return with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.grad_points && inverse.clouds * inverse.rows > 0) {
      TORCHVOX_CUDA_CHECK((launch_sums<DistanceGradient<T>, false>(args, workspace, context)));
    }
    if (!args.grad_query || inverse.clouds * args.queries == 0) return cudaSuccess;
    return args.idx.wide ? launch_queries<T, int64_t>(args, context.stream)
                         : launch_queries<T, int32_t>(args, context.stream);
  });
}

int64_t workspace_bytes_cuda(const SegmentSumArgs& args, const Target&) {
  return with_sums(args, [&](auto sums) { return sums.bytes(args); });
}

cudaError_t launch(const SegmentSumArgs& args, void* workspace, const CudaContext& context) {
  if (args.inverse.clouds * args.inverse.rows * args.channels == 0) return cudaSuccess;
  return with_sums(args, [&](auto sums) { return sums.launch(args, workspace, context); });
}

}  // namespace torchvox
