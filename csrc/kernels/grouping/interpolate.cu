// SPDX-License-Identifier: Apache-2.0
//
// Interpolation from three neighbors, and the gradient of its weights, on the GPU.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/interpolate.h"

namespace torchvox {
namespace {

constexpr int kPlanes = 8;  // channels per thread, for which it reads its indices once
constexpr int kQueries = 64;  // per block

// Channel-last. One block per kQueries queries: one thread per query computes its weights; then a
// row of threads per query reads kWidth channels of three rows at a time and writes their sum.
template <class T, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ InterpolateArgs args) {
  using Sum = compute_t<T>;
  __shared__ Sum weights[kQueries][kNearest];
  __shared__ int64_t rows[kQueries][kNearest];
  const int64_t all = args.clouds * args.queries;
  const int64_t first = int64_t{blockIdx.x} * kQueries;
  const auto thread = threadIdx.y * blockDim.x + threadIdx.x;
  for (unsigned q = thread; q < kQueries && first + q < all; q += blockDim.x * blockDim.y) {
    const Nearest<Sum> nearest(args, first + q);
    for (int j = 0; j < kNearest; ++j) {
      weights[q][j] = nearest.weight[j];
      rows[q][j] = nearest.row[j];
    }
  }
  __syncthreads();
  const T* const features = static_cast<const T*>(args.features);
  for (unsigned q = threadIdx.y; q < kQueries && first + q < all; q += blockDim.y) {
    for (int64_t c = threadIdx.x * kWidth; c < args.channels; c += blockDim.x * kWidth) {
      Channels<Sum, kWidth> item[kNearest], result;
#pragma unroll
      for (int j = 0; j < kNearest; ++j) {
        if (rows[q][j] < 0) continue;
        item[j] = load_items<T, kWidth>(features + rows[q][j] * args.channels + c);
      }
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const Sum feature[kNearest] = {item[0].at[i], item[1].at[i], item[2].at[i]};
        result.at[i] = interpolated(weights[q], feature);
      }
      store_items<T, kWidth>(static_cast<T*>(args.out) + (first + q) * args.channels + c, result);
    }
  }
}

// Channels first. One thread per query and kPlanes planes: reads three elements of each plane,
// writes one.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    planes_kernel(const __grid_constant__ InterpolateArgs args, int64_t groups) {
  const int64_t query = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (query >= args.queries) return;
  for (int64_t y = blockIdx.y; y < args.clouds * groups; y += gridDim.y) {
    const int64_t cloud = y / groups, first = (y - cloud * groups) * kPlanes;
    const Nearest<compute_t<T>> nearest(args, cloud * args.queries + query);
    for (int c = 0; c < kPlanes && first + c < args.channels; ++c) {
      interpolate_element<T>(args, nearest, cloud * args.queries + query, first + c);
    }
  }
}

// One warp per query: lane l computes sum l of the 32 sums of each of the three weights; reads grad
// once and three rows of features, writes three gradients.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    weight_grad_kernel(const __grid_constant__ InterpolateWeightGradArgs args, int64_t count) {
  using Sum = compute_t<T>;
  const int lane = threadIdx.x % 32;
  const int64_t row_stride = args.channels_first ? 1 : args.channels;
  for (int64_t query = global_thread() / 32; query < count; query += global_stride() / 32) {
    const int64_t cloud = query / args.queries, in_cloud = query - cloud * args.queries;
    const T* const grad = static_cast<const T*>(args.grad) + cloud * args.queries * args.channels +
        in_cloud * row_stride;
    const T* const features =
        static_cast<const T*>(args.features) + cloud * args.rows * args.channels;
    const int64_t grad_step = args.channels_first ? args.queries : 1;
    const int64_t step = args.channels_first ? args.rows : 1;
    const T* row[kNearest];
#pragma unroll
    for (int j = 0; j < kNearest; ++j) {
      const int64_t index = args.idx[query * kNearest + j];
      row[j] = index >= 0 && index < args.rows ? features + index * row_stride : nullptr;
    }
    Sum sum[kNearest] = {};
    for (int64_t c = lane; c < args.channels; c += kWeightSums) {
      const Sum g = widen_item(grad[c * grad_step]);
#pragma unroll
      for (int j = 0; j < kNearest; ++j) {
        if (row[j]) sum[j] = fma_rn(g, Sum(widen_item(row[j][c * step])), sum[j]);
      }
    }
#pragma unroll
    for (int j = 0; j < kNearest; ++j) {
      for (int half = kWeightSums / 2; half > 0; half /= 2) {
        sum[j] += __shfl_down_sync(0xffffffffu, sum[j], half);
      }
      if (lane == 0)
        store_as(args.grad_weight, args.weight_dtype, query * kNearest + j, quiet(sum[j]));
    }
  }
}

template <class T, int kWidth>
cudaError_t launch_rows(const InterpolateArgs& args, cudaStream_t stream) {
  const unsigned blocks = grid_x(ceil_div<int64_t>(args.clouds * args.queries, kQueries));
  return launch_blocks(rows_kernel<T, kWidth>, blocks, block_of(args.channels / kWidth), stream,
                       args);
}

template <class T>
cudaError_t launch_type(const InterpolateArgs& args, cudaStream_t stream) {
  if (args.channels_first) {
    const int64_t groups = ceil_div<int64_t>(args.channels, kPlanes);
    const dim3 grid(grid_x(ceil_div<int64_t>(args.queries, kRowThreads)),
                    grid_y(args.clouds * groups));
    return launch_blocks(planes_kernel<T>, grid, kRowThreads, stream, args, groups);
  }
  constexpr int kWidth = kItemsPerWord<T>;
  const bool in_words =
      args.channels % kWidth == 0 && is_aligned(args.features) && is_aligned(args.out);
  return in_words ? launch_rows<T, kWidth>(args, stream) : launch_rows<T, 1>(args, stream);
}

}  // namespace

cudaError_t launch(const InterpolateArgs& args, void*, const CudaContext& context) {
  if (args.clouds * args.queries * args.channels == 0) return cudaSuccess;
  return with_point_type(
      args.dtype, [&](auto type) { return launch_type<decltype(type)>(args, context.stream); });
}

cudaError_t launch(const InterpolateWeightGradArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.clouds * args.queries;
  return with_point_type(args.dtype, [&](auto type) {
    return launch_items(weight_grad_kernel<decltype(type)>, count * 32, kRowThreads, context, args,
                        count);
  });
}

}  // namespace torchvox
