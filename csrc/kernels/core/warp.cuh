// SPDX-License-Identifier: Apache-2.0
//
// Reductions over the lanes of a warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace torchvox {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// Of one value a lane, in every lane.
__device__ __forceinline__ uint32_t warp_sum(uint32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(kFullWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
#endif
}
__device__ __forceinline__ uint32_t warp_min(uint32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_min_sync(kFullWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x = min(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
#endif
}
__device__ __forceinline__ uint32_t warp_max(uint32_t x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kFullWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
#endif
}
__device__ __forceinline__ int warp_max_signed(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kFullWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
#endif
}

}  // namespace torchvox
