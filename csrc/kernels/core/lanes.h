// SPDX-License-Identifier: Apache-2.0
//
// Rows that a whole warp works on (CUDA) or a single thread (CPU), with one body for both.
#pragma once

#include "csrc/kernels/core/entry.h"
#ifdef __CUDACC__
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#endif

namespace torchvox {

// This thread among those of a row: 32 on the GPU, one on the host.
struct Lanes {
  int lane = 0, count = 1;

  TORCHVOX_HD int32_t max(int32_t x) const {
#ifdef __CUDA_ARCH__
    return warp_max(x);
#else
    return x;
#endif
  }
  TORCHVOX_HD bool any(bool x) const { return max(x) != 0; }
};

#ifdef __CUDACC__
// One warp per row: kRow(args, i, lanes) for every i below `count`. What it reads and writes is
// said where kRow is defined.
template <auto kRow, int kThreads, class Args>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ Args args, int64_t count) {
  const Lanes lanes{static_cast<int>(threadIdx.x % 32), 32};
  for (int64_t i = global_thread() / 32; i < count; i += global_stride() / 32) {
    kRow(args, i, lanes);
  }
}
template <auto kRow, int kThreads = 256, class Args>
cudaError_t launch_rows(const Args& args, int64_t count, const CudaContext& context) {
  return launch_items(rows_kernel<kRow, kThreads, Args>, 32 * count, kThreads, context, args,
                      count);
}
#endif

}  // namespace torchvox
