// SPDX-License-Identifier: Apache-2.0
//
// Maps of sparse convolutions on the GPU: a chain of three kernels for a submanifold map, else of
// four, or of six where the output grid is large.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/sparse/map.h"
#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = kScanThreads;
constexpr int kEach = 4;  // words that a thread counts

// The memory of a call, and of the two counts of bits.
struct DeviceMapWork : SparseMapWork {
  int64_t tiles;  // of either count
  uint64_t* status;  // [2, tiles]
  uint32_t* tickets;  // [2]

  DeviceMapWork(const SparseMapArgs& args, Workspace& workspace)
      : SparseMapWork(args, workspace),
        tiles(std::max(out.words(), out.most_leaves) / (kEach * kThreads) + 1),  // and the total
        status(workspace.take<uint64_t>(2 * tiles)),
        tickets(workspace.take<uint32_t>(2)) {}
};

template <class T>
__device__ __forceinline__ void fill(T* data, int64_t count, T value) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) data[i] = value;
}

// Empties the table and the tree, and what is counted.
__global__ void __launch_bounds__(kThreads)
    clear_kernel(const __grid_constant__ SparseMapArgs args,
                 const __grid_constant__ DeviceMapWork work) {
  let_next_begin();
  fill(work.table.lines, work.table.places, CellTable::kNoLine);
  fill(work.table.rows, work.table.size(), CellTable::kNoRow);
  fill(work.later, args.rows, uint8_t{0});
  fill(args.counts, (args.batches + 1) * kCountColumns, 0);
  if (args.submanifold) return;
  fill(work.out.segments, work.out.words(), uint64_t{0});
  fill(work.out.leaves, work.out.most_leaves, uint64_t{0});
  fill(work.status, 2 * work.tiles, ~uint64_t{0});
  fill(work.tickets, 2, ~0u);
}

// One thread per row and, unless submanifold, plane. The first time the tables are filled with -1,
// too.
template <bool kFirst>
__global__ void __launch_bounds__(kThreads)
    enter_kernel(const __grid_constant__ SparseMapArgs args,
                 const __grid_constant__ DeviceMapWork work) {
  const int64_t valid = args.valid(), planes = args.submanifold ? 1 : work.planes;
  let_next_begin();
  if (kFirst && !args.submanifold) {
    fill(args.neighbors, args.volume() * args.out_rows, -1);
    fill(args.inverse, args.volume() * args.rows, -1);
    fill(args.out_indices, args.out_rows, SparseIndex{-1, -1, -1, -1});
  }
  wait_for_previous();
  for (int64_t i = global_thread(); i < planes * valid; i += global_stride()) {
    const auto plane = static_cast<int>(divide(i, valid));
    enter_row(args, work, i - plane * valid, plane, plane + 1, kFirst);
  }
}

// Writes the numbers of bits before the words of a level, a tile per block.
template <bool kLeaves>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ DeviceMapWork work) {
  __shared__ ScanShared shared;
  const uint64_t* words = kLeaves ? work.out.leaves : work.out.segments;
  uint32_t* before = kLeaves ? work.out.cells_before : work.out.leaves_before;
  let_next_begin();
  wait_for_previous();
  const int64_t tile = block_ticket(&work.tickets[kLeaves]);
  const int64_t count = kLeaves ? work.out.leaf_count() : work.out.words();
  const int64_t begin = (tile * kThreads + threadIdx.x) * kEach;
  uint32_t bits[kEach];
  uint64_t sum = 0, all;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    bits[i] = begin + i < count ? bit_count(words[begin + i]) : 0;
    sum += bits[i];
  }
  sum = block_prefix(sum, shared.sums, &all);
  sum += tile_prefix(work.status + kLeaves * work.tiles, tile, all, shared);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    if (begin + i <= count) before[begin + i] = static_cast<uint32_t>(sum);
    sum += bits[i];
  }
}

// Adds up the counts of a warp's rows, which mostly are of one sample. `sums` takes those of the
// call and of the first samples, over the rows of the block.
__device__ void add_warp_counts(const SparseMapArgs& args, RowCounts counts, uint32_t* sums) {
  int same;
  __match_all_sync(kFullWarp, static_cast<int>(counts.sample), &same);
  if (same) {
    counts.active = warp_sum(counts.active);
    counts.pairs = warp_sum(counts.pairs);
    counts.skipped = warp_sum(counts.skipped);
    if (threadIdx.x % 32 != 0) return;
  }
  add_counts(counts, [&](int64_t row) {
    const int64_t at = kCountColumns * row;
    return (at < kThreads ? sums : reinterpret_cast<uint32_t*>(args.counts)) + at;
  });
}

// One thread per row and plane; neighboring threads write neighboring rows.
template <bool kSubmanifold>
__global__ void __launch_bounds__(kThreads, 4)
    write_kernel(const __grid_constant__ SparseMapArgs args,
                 const __grid_constant__ DeviceMapWork work) {
  __shared__ uint32_t sums[kThreads];
  const int64_t valid = args.valid(), entries = work.planes * args.rows;
  sums[threadIdx.x] = 0;
  __syncthreads();
  wait_for_previous();
  for (int64_t first = global_thread() - threadIdx.x % 32; first < entries;
       first += global_stride()) {
    RowCounts counts;
    if (const int64_t i = first + threadIdx.x % 32; i < entries) {
      const auto plane = static_cast<int>(divide(i, args.rows));
      counts = write_row<kSubmanifold>(args, work, valid, i - plane * args.rows, plane);
    }
    add_warp_counts(args, counts, sums);
  }
  __syncthreads();
  if (const uint32_t sum = sums[threadIdx.x]; sum != 0) {
    atomic_add(reinterpret_cast<uint32_t*>(args.counts) + threadIdx.x, sum);
  }
  if constexpr (!kSubmanifold) {
    for (int64_t b = global_thread(); b <= args.batches; b += global_stride()) {
      write_row_counts(args, work, b - 1);
    }
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const SparseMapArgs& args, const Target&) {
  return carved_bytes<DeviceMapWork>(args);
}

cudaError_t launch(const SparseMapArgs& args, void* memory, const CudaContext& context) {
  const auto work = carve<DeviceMapWork>(memory, args);
  const RankTree& out = work.out;
  const auto blocks = [&](int64_t items) { return blocks_for(items, kThreads, context.target, 8); };
  const auto run = [&](auto kernel, int64_t items) {
    return launch_after(kernel, blocks(items), kThreads, context, args, work);
  };
  const auto count = [&](auto kernel) {
    return launch_after(kernel, grid_x(work.tiles), kThreads, context, work);
  };
  TORCHVOX_CUDA_CHECK(launch_blocks(clear_kernel,
                                    blocks(std::max(work.table.size(), out.most_leaves)), kThreads,
                                    context.stream, args, work));
  const int64_t tasks = work.planes * args.rows;
  const int64_t filled = args.submanifold ? 0 : args.volume() * std::max(args.rows, args.out_rows);
  const int64_t entered = args.submanifold ? args.rows : tasks;
  TORCHVOX_CUDA_CHECK(run(enter_kernel<true>, std::max(entered, filled)));
  if (args.submanifold) return run(write_kernel<true>, tasks);
  if (!out.all_leaves) {
    TORCHVOX_CUDA_CHECK(count(count_kernel<false>));
    TORCHVOX_CUDA_CHECK(run(enter_kernel<false>, tasks));
  }
  TORCHVOX_CUDA_CHECK(count(count_kernel<true>));
  return run(write_kernel<false>, tasks);
}

}  // namespace torchvox
