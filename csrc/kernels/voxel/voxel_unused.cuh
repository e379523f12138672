// SPDX-License-Identifier: Apache-2.0
//
// The rows of the outputs that no voxel uses.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_work.cuh"

namespace torchvox {

// Bytes [begin, end) of an array, 16 at a time, by the first `blocks` blocks.
static __device__ __noinline__ void fill(void* array, int64_t begin, int64_t end, uint8_t byte,
                                         unsigned blocks) {
  if (begin >= end) return;
  const int64_t stride = int64_t{blocks} * blockDim.x;
  uint8_t* bytes = static_cast<uint8_t*>(array);
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bytes + begin) % 16);
  int64_t head = begin + (16 - misaligned) % 16;
  if (head > end) head = end;
  const int64_t quads = (end - head) / 16;
  const unsigned word = byte * 0x01010101u;
  uint4* aligned = reinterpret_cast<uint4*>(bytes + head);
#pragma unroll 1
  for (int64_t k = global_thread(); k < quads; k += stride) {
    aligned[k] = make_uint4(word, word, word, word);
  }
  const int64_t loose = (head - begin) + (end - head - 16 * quads);
#pragma unroll 1
  for (int64_t k = global_thread(); k < loose; k += stride) {
    const int64_t at = begin + k < head ? begin + k : head + 16 * quads + (k - (head - begin));
    bytes[at] = byte;
  }
}

// Rows past the last voxel, one a thread; wider features by the byte. Nothing reads them, so they
// leave the cache first. By the first `blocks` blocks.
__device__ inline void fill_unused_rows(const VoxelizeArgs& args, int64_t rows, unsigned blocks) {
  const int64_t capacity = args.capacity();
  const int64_t row_bytes = args.feature_row_bytes();
  const int64_t stride = int64_t{blocks} * blockDim.x;
#pragma unroll 2
  for (int64_t row = rows + global_thread(); row < capacity; row += stride) {
    __stcs(reinterpret_cast<int4*>(args.indices) + row, make_int4(-1, -1, -1, -1));
    __stcs(args.num_points + row, 0);
    if (row_bytes == 8) __stcs(static_cast<uint2*>(args.features) + row, make_uint2(0, 0));
    if (row_bytes == 16) __stcs(static_cast<uint4*>(args.features) + row, make_uint4(0, 0, 0, 0));
  }
  if (row_bytes != 8 && row_bytes != 16) {
    fill(args.features, row_bytes * rows, row_bytes * capacity, 0, blocks);
  }
  if (args.arg != nullptr) {
    fill(args.arg, 4 * args.points.columns * rows, 4 * args.points.columns * capacity, 0xff,
         blocks);
  }
}

}  // namespace torchvox
