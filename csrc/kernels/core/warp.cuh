// SPDX-License-Identifier: Apache-2.0
//
// Sums, least and largest values over the lanes of a warp.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace torchvox {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// Mask of the lanes below `lane`.
__device__ __forceinline__ unsigned lanes_below(int lane) { return (1u << lane) - 1; }

// Sum over this lane and all lower ones.
template <class Sum>
__device__ __forceinline__ Sum warp_inclusive(Sum x) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const Sum below = __shfl_up_sync(kFullWarp, x, step);
    if (static_cast<int>(threadIdx.x % 32) >= step) x += below;
  }
  return x;
}

// Sum over the earlier threads of the block; *total becomes the sum over all of them. Called by
// every thread of the block; `sums` is shared memory for 32 values.
template <class Sum, class Room>
__device__ __forceinline__ Sum block_prefix(Sum value, Room* sums, Sum* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const Sum inclusive = warp_inclusive(value);
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  const Sum all = warp_inclusive(lane < warps ? static_cast<Sum>(sums[lane]) : Sum{0});
  const Sum before = __shfl_sync(kFullWarp, all, warp > 0 ? warp - 1 : 0);
  *total = __shfl_sync(kFullWarp, all, 31);
  __syncthreads();
  return (warp > 0 ? before : 0) + inclusive - value;
}

// Sum, minimum and maximum of one value per lane; every lane gets the result.
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
template <class Int>
__device__ __forceinline__ Int warp_max(Int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kFullWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
#endif
}

}  // namespace torchvox
