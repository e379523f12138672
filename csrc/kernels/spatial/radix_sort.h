// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TORCHVOX_CUDA
#include <cuda_runtime_api.h>

#include <cstdint>

namespace torchvox {

// Pairs in two buffers each; a sort leaves its result in `keys[current]`, `values[current]`.
struct SortBuffers {
  uint32_t* keys[2];
  uint32_t* values[2];
  int current = 0;
  void* temporary = nullptr;
  int64_t temporary_bytes = 0;
};

// Bytes of temporary storage to sort `count` pairs on the current device.
int64_t radix_sort_bytes(int64_t count);

// Sorts `count` pairs by the low `bits` bits of their keys, ascending; equal keys keep their order.
cudaError_t radix_sort(SortBuffers& buffers, int64_t count, int bits, cudaStream_t stream);

}  // namespace torchvox
#endif
