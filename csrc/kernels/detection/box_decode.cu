// SPDX-License-Identifier: Apache-2.0
//
// box_decode on the GPU: one thread a box reads its regressed values, direction logits and anchor
// and writes 7 or 9 floats.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/detection/box_decode.h"

namespace torchvox {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void __launch_bounds__(kThreads)
    decode_kernel(const __grid_constant__ BoxDecodeArgs args) {
  for (int64_t row = global_thread(); row < args.rows; row += global_stride()) {
    decode_row<T>(args, row);
  }
}

}  // namespace

cudaError_t launch(const BoxDecodeArgs& args, void*, const CudaContext& context) {
  if (args.rows == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(args.rows, kThreads, context.target);
  switch (args.dtype) {
    case DType::kHalf: decode_kernel<Half><<<blocks, kThreads, 0, context.stream>>>(args); break;
    case DType::kBFloat16:
      decode_kernel<BFloat16><<<blocks, kThreads, 0, context.stream>>>(args);
      break;
    default: decode_kernel<float><<<blocks, kThreads, 0, context.stream>>>(args); break;
  }
  return cudaGetLastError();
}

}  // namespace torchvox
