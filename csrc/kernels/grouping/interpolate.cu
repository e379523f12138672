// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/interpolate_common.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread an element of the output, consecutive ones in either layout.
template <class T>
__global__ void __launch_bounds__(kThreads)
    interpolate_kernel(InterpolateArgs args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) {
    int64_t query = i / args.channels, c = i % args.channels;
    if (args.channels_first) {
      const int64_t plane = i / args.queries;  // cloud * channels + channel
      c = plane % args.channels;
      query = plane / args.channels * args.queries + i % args.queries;
    }
    interpolate_element<T>(args, Nearest<compute_t<T>>(args, query), query, c);
  }
}

// One warp a weight, a lane each of its 32 sums.
template <class T>
__global__ void __launch_bounds__(kThreads)
    weight_grad_kernel(InterpolateWeightGradArgs args, int64_t count) {
  const int lane = threadIdx.x % 32;
  for (int64_t i = global_thread() / 32; i < count; i += global_stride() / 32) {
    auto sum = weight_partial<T>(args, i, lane);
    for (int half = kWeightSums / 2; half > 0; half /= 2) {
      sum += __shfl_down_sync(0xffffffffu, sum, half);
    }
    if (lane == 0) store_weight(args.grad_weight, args.weight_dtype, i, sum);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) weights_kernel(InterpolationWeightsArgs args) {
  for (int64_t query = global_thread(); query < args.queries; query += global_stride()) {
    weights_of_query<T>(args, query);
  }
}

}  // namespace

cudaError_t launch(const InterpolateArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.clouds * args.queries * args.channels;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kThreads, context.target);
  with_point_type(args.dtype, [&](auto type) {
    interpolate_kernel<decltype(type)><<<blocks, kThreads, 0, context.stream>>>(args, count);
  });
  return cudaGetLastError();
}

cudaError_t launch(const InterpolateWeightGradArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.clouds * args.queries * kNearest;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count * 32, kThreads, context.target);
  with_point_type(args.dtype, [&](auto type) {
    weight_grad_kernel<decltype(type)><<<blocks, kThreads, 0, context.stream>>>(args, count);
  });
  return cudaGetLastError();
}

cudaError_t launch(const InterpolationWeightsArgs& args, void*, const CudaContext& context) {
  if (args.queries == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(args.queries, kThreads, context.target);
  if (args.dtype == DType::kDouble) {
    weights_kernel<double><<<blocks, kThreads, 0, context.stream>>>(args);
  } else {
    weights_kernel<float><<<blocks, kThreads, 0, context.stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace torchvox
