// SPDX-License-Identifier: Apache-2.0
//
// The fused batch norm and its gradient on the GPU: one thread an output; the moments are read by
// all of them and stay in the nearest cache.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/pillars/norm.h"

namespace torchvox {
namespace {

constexpr int kThreads = 32;  // outputs are few: spread them

__global__ void __launch_bounds__(kThreads) norm_kernel(PillarNormArgs args) {
  for (int64_t output = global_thread(); output < args.outputs; output += global_stride()) {
    norm_output(args, output);
  }
}

__global__ void __launch_bounds__(kThreads) gradient_kernel(PillarNormBackwardArgs args) {
  for (int64_t output = global_thread(); output < args.norm.outputs; output += global_stride()) {
    norm_gradient(args, output);
  }
}

}  // namespace

cudaError_t launch(const PillarNormArgs& args, void*, const CudaContext& context) {
  norm_kernel<<<blocks_for(args.outputs, kThreads, context.target), kThreads, 0, context.stream>>>(
      args);
  return cudaGetLastError();
}

cudaError_t launch(const PillarNormBackwardArgs& args, void*, const CudaContext& context) {
  gradient_kernel<<<blocks_for(args.norm.outputs, kThreads, context.target), kThreads, 0,
                    context.stream>>>(args);
  return cudaGetLastError();
}

}  // namespace torchvox
