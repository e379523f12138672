// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/core/target.h"

// Returns from a launcher with the first error.
#define TORCHVOX_CUDA_CHECK(call)               \
  do {                                          \
    const cudaError_t torchvox_status = (call); \
    if (torchvox_status != cudaSuccess) {       \
      return torchvox_status;                   \
    }                                           \
  } while (0)

namespace torchvox {

template <class T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// Blocks for `count` items, one a thread, at most `per_multiprocessor` resident waves' worth:
// kernels walk the rest in a grid-stride loop.
inline unsigned blocks_for(int64_t count, int threads, const Target& target,
                           int per_multiprocessor = 16) {
  const int64_t wanted = ceil_div<int64_t>(count, threads);
  const int64_t most =
      int64_t{per_multiprocessor} * (target.multiprocessors > 0 ? target.multiprocessors : 1);
  return static_cast<unsigned>(wanted < most ? (wanted > 0 ? wanted : 1) : most);
}

__device__ __forceinline__ int64_t global_thread() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t global_stride() { return int64_t{gridDim.x} * blockDim.x; }

}  // namespace torchvox
