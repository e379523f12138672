// SPDX-License-Identifier: Apache-2.0
//
// An order of the rows of a table in which rows that have neighbors in the same places lie side by
// side, so that a block which takes some of them has few absent neighbors to pass over. It changes
// no value: rows of one key may come in any order.
#pragma once

#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/conv.h"

namespace torchvox {

inline constexpr int kKeys = 1024;  // and threads of a block, one per key

struct SparseOrder {
  int64_t share;  // rows of a block
  int blocks;
  int32_t* counts;  // [blocks, kKeys] rows of a block that have a key
  uint16_t* keys;  // [rows]
  int32_t* rows;  // [rows], in order

  SparseOrder(int64_t count, Workspace& workspace)
      : share(std::max<int64_t>(ceil_div<int64_t>(count, 64), kKeys)),
        blocks(static_cast<int>(ceil_div(count, share))),
        counts(workspace.take<int32_t>(int64_t{blocks} * kKeys)),
        keys(workspace.take<uint16_t>(count)),
        rows(workspace.take<int32_t>(count)) {}
};

// What an offset sets in the key of a row that has it: bit 8 or 9 below or above the middle along
// z, and one of eight bits for its side of the middle along y and x.
__device__ inline unsigned key_bits(const SparseKernelSize& size, int offset) {
  const auto side = [&offset](int64_t size) {
    const auto n = static_cast<int>(size), at = 2 * (offset % n);
    offset /= n;
    return (at > n - 1) - (at < n - 1);
  };
  const int x = side(size.x), y = side(size.y), z = side(size.z), column = 3 * y + x + 4;
  const unsigned plane = z == 0 ? 0 : z < 0 ? 256 : 512;
  return column == 4 ? plane : plane | 1u << (column - (column > 4));
}

// One block per share of the rows, one thread per row in turn. Reads the table; writes keys and
// the block's counts. Keys descend from those with both planes along z, the heaviest rows, and then
// in the Gray order of columns, in which neighbors differ in one. Rows not in use come last.
static __global__ void __launch_bounds__(kKeys)
    count_kernel(const __grid_constant__ SparseTable table,
                 const __grid_constant__ SparseKernelSize size,
                 const __grid_constant__ SparseOrder order) {
  __shared__ int counts[kKeys];
  __shared__ unsigned bits[kKeys];
  let_next_begin();
  const int64_t begin = blockIdx.x * order.share, end = min(begin + order.share, table.rows);
  const int64_t valid = table.valid(), limit = table.valid_sources();
  counts[threadIdx.x] = 0;
  if (threadIdx.x < table.volume) bits[threadIdx.x] = key_bits(size, threadIdx.x);
  __syncthreads();
  for (int64_t row = begin + threadIdx.x; row < end; row += kKeys) {
    const int64_t volume = row < valid ? table.volume : 0;
    unsigned has = 0;
#pragma unroll 9
    for (int k = 0; k < volume; ++k) has |= table.at(k, row, limit) >= 0 ? bits[k] : 0;
    unsigned columns = has & 255;
    for (int step = 1; step < 8; step *= 2) columns ^= columns >> step;
    const unsigned key = kKeys - 1 - ((has & 768) | columns);
    order.keys[row] = static_cast<uint16_t>(key);
    atomicAdd(&counts[key], 1);
  }
  __syncthreads();
  order.counts[blockIdx.x * kKeys + threadIdx.x] = counts[threadIdx.x];
}

// One block per share of the rows, one thread per key, then per row in turn. Reads keys and counts;
// writes the rows, behind those of lower keys and, with their own, of earlier blocks.
static __global__ void __launch_bounds__(kKeys)
    place_kernel(const __grid_constant__ SparseOrder order, int64_t rows) {
  __shared__ int next[kKeys], sums[32];
  let_next_begin();
  wait_for_previous();
  int before = 0, all = 0, total;
#pragma unroll 8
  for (int block = 0; block < order.blocks; ++block) {
    const int count = order.counts[block * kKeys + threadIdx.x];
    before += block < static_cast<int>(blockIdx.x) ? count : 0;
    all += count;
  }
  next[threadIdx.x] = block_prefix(all, sums, &total) + before;
  __syncthreads();
  const int64_t begin = blockIdx.x * order.share, end = min(begin + order.share, rows);
  for (int64_t row = begin + threadIdx.x; row < end; row += kKeys) {
    order.rows[atomicAdd(&next[order.keys[row]], 1)] = static_cast<int32_t>(row);
  }
}

// Begins a chain of launches. Writes order.rows.
inline cudaError_t launch_order(const SparseTable& table, const SparseKernelSize& size,
                                const SparseOrder& order, const CudaContext& context) {
  const auto blocks = static_cast<unsigned>(order.blocks);
  TORCHVOX_CUDA_CHECK(
      launch_blocks(count_kernel, blocks, kKeys, context.stream, table, size, order));
  return launch_after(place_kernel, blocks, kKeys, context, order, table.rows);
}

}  // namespace torchvox
