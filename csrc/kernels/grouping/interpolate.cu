// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/interpolate_common.h"
#include "csrc/kernels/grouping/row_blocks.cuh"
#include "csrc/kernels/grouping/words.cuh"

namespace torchvox {
namespace {

constexpr int kPlanes = 8;  // channels for which a thread reads its indices once
constexpr int kQueries = 64;  // of a block: their rows and weights are made once, by a thread each

template <class T>
struct Scalar {
  static constexpr int kWidth = 1;
  T value;
  __device__ T item(int) const { return value; }
  __device__ void set(int, T item) { value = item; }
};

// Channel-last. `Item` is what a thread moves at once: a word of 16 bytes, or one element.
template <class T, class Item>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ InterpolateArgs args) {
  using Sum = compute_t<T>;
  __shared__ Sum weights[kQueries][kNearest];
  __shared__ int64_t rows[kQueries][kNearest];
  const int64_t items = args.channels / Item::kWidth;
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
  const auto* const features = static_cast<const Item*>(args.features);
  for (unsigned q = threadIdx.y; q < kQueries && first + q < all; q += blockDim.y) {
    for (int64_t at = threadIdx.x; at < items; at += blockDim.x) {
      Item item[kNearest], result;
#pragma unroll
      for (int j = 0; j < kNearest; ++j) {
        item[j] = rows[q][j] < 0 ? Item{} : features[rows[q][j] * items + at];
      }
#pragma unroll
      for (int c = 0; c < Item::kWidth; ++c) {
        const Sum feature[kNearest] = {widen(item[0].item(c)), widen(item[1].item(c)),
                                       widen(item[2].item(c))};
        result.set(c, narrow<T>(interpolated(weights[q], feature)));
      }
      static_cast<Item*>(args.out)[(first + q) * items + at] = result;
    }
  }
}

// Channels first: a thread has one query of a few planes.
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

// One warp a query, a lane each of the 32 sums of its three weights: grad is read once.
template <class T>
__global__ void __launch_bounds__(kRowThreads)
    weight_grad_kernel(const __grid_constant__ InterpolateWeightGradArgs args, int64_t count) {
  const int lane = threadIdx.x % 32;
  for (int64_t query = global_thread() / 32; query < count; query += global_stride() / 32) {
    for (int j = 0; j < kNearest; ++j) {
      auto sum = weight_partial<T>(args, query * kNearest + j, lane);
      for (int half = kWeightSums / 2; half > 0; half /= 2) {
        sum += __shfl_down_sync(0xffffffffu, sum, half);
      }
      if (lane == 0) store_weight(args.grad_weight, args.weight_dtype, query * kNearest + j, sum);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kRowThreads) weights_kernel(InterpolationWeightsArgs args) {
  for (int64_t query = global_thread(); query < args.queries; query += global_stride()) {
    weights_of_query<T>(args, query);
  }
}

template <class T, class Item>
void launch_rows(const InterpolateArgs& args, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>(ceil_div<int64_t>(args.clouds * args.queries, kQueries));
  rows_kernel<T, Item><<<blocks, block_of(args.channels / Item::kWidth), 0, stream>>>(args);
}

template <class T>
void launch_type(const InterpolateArgs& args, cudaStream_t stream) {
  if (args.channels_first) {
    const int64_t groups = ceil_div<int64_t>(args.channels, kPlanes);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.queries, kRowThreads)),
                    grid_y(args.clouds * groups));
    planes_kernel<T><<<grid, kRowThreads, 0, stream>>>(args, groups);
  } else if (args.channels % Word<T>::kWidth == 0 && is_aligned(args.features) &&
             is_aligned(args.out)) {
    launch_rows<T, Word<T>>(args, stream);
  } else {
    launch_rows<T, Scalar<T>>(args, stream);
  }
}

}  // namespace

cudaError_t launch(const InterpolateArgs& args, void*, const CudaContext& context) {
  if (args.clouds * args.queries * args.channels == 0) return cudaSuccess;
  with_point_type(args.dtype,
                  [&](auto type) { launch_type<decltype(type)>(args, context.stream); });
  return cudaGetLastError();
}

cudaError_t launch(const InterpolateWeightGradArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.clouds * args.queries;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count * 32, kRowThreads, context.target);
  with_point_type(args.dtype, [&](auto type) {
    weight_grad_kernel<decltype(type)><<<blocks, kRowThreads, 0, context.stream>>>(args, count);
  });
  return cudaGetLastError();
}

cudaError_t launch(const InterpolationWeightsArgs& args, void*, const CudaContext& context) {
  if (args.queries == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(args.queries, kRowThreads, context.target);
  if (args.dtype == DType::kDouble) {
    weights_kernel<double><<<blocks, kRowThreads, 0, context.stream>>>(args);
  } else {
    weights_kernel<float><<<blocks, kRowThreads, 0, context.stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace torchvox
