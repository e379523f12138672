// SPDX-License-Identifier: Apache-2.0
//
// The radix sort of pairs on the GPU: CUB's.
#include "csrc/kernels/spatial/radix_sort.h"

#include <cub/device/device_radix_sort.cuh>

#include "csrc/kernels/core/launch.cuh"

namespace torchvox {

int64_t radix_sort_bytes(int64_t count) {
  size_t bytes = 0;
  cub::DoubleBuffer<uint32_t> keys, values;
  cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, values, count, 0, 32);
  return static_cast<int64_t>(bytes);
}

cudaError_t radix_sort(SortBuffers& buffers, int64_t count, int bits, cudaStream_t stream) {
  const int now = buffers.current;
  cub::DoubleBuffer<uint32_t> keys(buffers.keys[now], buffers.keys[1 - now]);
  cub::DoubleBuffer<uint32_t> values(buffers.values[now], buffers.values[1 - now]);
  size_t bytes = static_cast<size_t>(buffers.temporary_bytes);
  TORCHVOX_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(buffers.temporary, bytes, keys, values, count,
                                                      0, bits > 0 ? bits : 1, stream));
  // CUB keeps both buffers in step.
  buffers.current = keys.Current() == buffers.keys[now] ? now : 1 - now;
  return cudaSuccess;
}

}  // namespace torchvox
