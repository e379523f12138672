// SPDX-License-Identifier: Apache-2.0
//
// Reductions over the lanes of a warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace torchvox {

inline constexpr unsigned kWholeWarp = 0xffffffffu;

// Of one value a lane, in every lane.
__device__ __forceinline__ uint32_t warp_sum(uint32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kWholeWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kWholeWarp, x, step);
  return x;
#endif
}
__device__ __forceinline__ uint32_t warp_most(uint32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kWholeWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kWholeWarp, x, step));
  return x;
#endif
}

}  // namespace torchvox
