// SPDX-License-Identifier: Apache-2.0
//
// Maps of sparse convolutions on the GPU: all steps in one cooperative launch with barriers between
// them, or a launch each.
#include "csrc/kernels/core/grid_barrier.cuh"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/map.h"

namespace torchvox {
namespace {

constexpr int kThreads = 512;
constexpr int kMostBlocks = kThreads;  // whose sums one block adds up

enum Step {
  kEnterSegments,
  kCountLeaves,
  kEnterCells,
  kCountCells,
  kChooseRows,
  kWriteTables,
  kSteps
};

// The memory of the launch. `sums` and what follows it up to row_of are cleared at once.
struct DeviceMemory {
  uint32_t* leaves;  // [2]: of the trees
  GridBarrier* barriers;  // [kSteps]
  uint32_t* sums;  // [2 levels, 2 trees, kMostBlocks]: kReady and the bits in the words of a block

  explicit DeviceMemory(Workspace& workspace)
      : leaves(workspace.take<uint32_t>(2)),
        barriers(workspace.take<GridBarrier>(kSteps)),
        sums(workspace.take<uint32_t>(4 * kMostBlocks)) {}
};
struct DeviceMapWork : DeviceMemory, SparseMapWork {
  DeviceMapWork(const SparseMapArgs& args, Workspace& workspace)
      : DeviceMemory(workspace), SparseMapWork(args, workspace) {}

  __device__ uint32_t* sums_of(bool leaves, int tree) const {
    return sums + (2 * leaves + tree) * kMostBlocks;
  }
};
constexpr uint32_t kReady = 1u << 31;

template <class T>
__device__ __forceinline__ void fill(T* data, int64_t count, T value) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) data[i] = value;
}

// Writes the number of bits before each word; returns that of all. Words of a thread are neighbors,
// so that sums run from thread to thread and block to block. Every block waits for the sums of all
// others.
__device__ uint32_t count_bits(const uint64_t* words, int64_t count, uint32_t* sums,
                               uint32_t* before, uint32_t* shared) {
  const int64_t each = ceil_div<int64_t>(count, global_stride());
  const int64_t begin = min(count, each * global_thread()), end = min(count, begin + each);
  uint32_t bits = 0, total, earlier, all;
  for (int64_t i = begin; i < end; ++i) bits += bit_count(words[i]);
  uint32_t sum = block_prefix(bits, shared, &total);
  if (threadIdx.x == 0) store_relaxed(&sums[blockIdx.x], kReady | total);
  uint32_t other = 0;
  while (threadIdx.x < gridDim.x && !((other = load_relaxed(&sums[threadIdx.x])) & kReady)) {
  }
  other &= ~kReady;
  block_prefix(threadIdx.x < blockIdx.x ? other : 0u, shared, &earlier);
  block_prefix(other, shared, &all);
  sum += earlier;
  for (int64_t i = begin; i < end; ++i) {
    before[i] = sum;
    sum += bit_count(words[i]);
  }
  return all;
}

// Adds up the counts of a warp's rows, which mostly are of one sample.
__device__ __forceinline__ void add_warp_counts(const SparseMapArgs& args, RowCounts counts) {
  int same;
  __match_all_sync(kFullWarp, static_cast<int>(counts.sample), &same);
  if (!same) return add_counts(args, counts);
  counts.pairs = warp_sum(counts.pairs);
  counts.skipped = warp_sum(counts.skipped);
  if (threadIdx.x % 32 == 0) add_counts(args, counts);
}

// Every thread takes rows, or words of the trees, one after the other; neighboring threads write
// neighboring rows of a table.
__device__ void run_step(const SparseMapArgs& args, const DeviceMapWork& work, int step,
                         uint32_t* shared) {
  const RankTree* trees[2] = {&work.in, &work.out};
  const int count = args.submanifold ? 1 : 2;
  const int64_t valid = args.valid();
  if (step == kCountLeaves || step == kCountCells) {
    for (int t = 0; t < count; ++t) {
      const RankTree& tree = *trees[t];
      if (step == kCountLeaves) {
        const uint32_t leaves = count_bits(tree.segments, tree.words(), work.sums_of(false, t),
                                           tree.leaves_before, shared);
        fill(tree.leaves, leaves, uint64_t{0});
        if (global_thread() == 0) work.leaves[t] = leaves;
      } else {
        const uint32_t cells = count_bits(tree.leaves, work.leaves[t], work.sums_of(true, t),
                                          tree.cells_before, shared);
        if (global_thread() == 0) tree.cells_before[work.leaves[t]] = cells;
      }
    }
    return;
  }
  if (step == kEnterSegments || step == kEnterCells) {
    const int planes = args.submanifold ? 1 : args.axes[0].kernel;
    for (int64_t i = global_thread(); i < planes * valid; i += global_stride()) {
      const int64_t kz = divide(i, valid);
      enter_row(args, work, i - kz * valid, static_cast<int>(kz), step == kEnterCells);
    }
    if (step == kEnterCells) return;
    fill(args.counts, (args.batches + 1) * kCountColumns, 0);
    if (!args.submanifold) {
      fill(args.neighbors, args.volume() * args.out_rows, -1);
      fill(args.out_indices, args.out_rows, SparseIndex{-1, -1, -1, -1});
    }
    return;
  }
  if (step == kChooseRows) {
    for (int64_t row = global_thread(); row < valid; row += global_stride()) {
      choose_row(args, work, row);
    }
    return;
  }
  const int64_t entries = args.axes[0].kernel * args.rows;
  for (int64_t first = global_thread() - threadIdx.x % 32; first < entries;
       first += global_stride()) {
    RowCounts counts;
    if (const int64_t i = first + threadIdx.x % 32; i < entries) {
      const int64_t kz = divide(i, args.rows);
      counts = write_row(args, work, valid, i - kz * args.rows, static_cast<int>(kz));
    }
    add_warp_counts(args, counts);
  }
  for (int64_t b = global_thread(); b <= args.batches; b += global_stride()) {
    write_row_counts(args, work, b - 1);
  }
}

// Steps [first, last): of a cooperative launch several, in which all blocks wait for each other.
// Reads indices, writes the tables and counts.
__global__ void __launch_bounds__(kThreads, 1)
    map_kernel(const __grid_constant__ SparseMapArgs args,
               const __grid_constant__ DeviceMapWork work, int first, int last) {
  __shared__ uint32_t shared[32];
  for (int step = first; step < last; ++step) {
    if (step > first) {
      work.barriers[step].arrive();
      work.barriers[step].wait();
    }
    run_step(args, work, step, shared);
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const SparseMapArgs& args, const Target&) {
  return carved_bytes<DeviceMapWork>(args);
}

cudaError_t launch(const SparseMapArgs& args, void* memory, const CudaContext& context) {
  auto work = carve<DeviceMapWork>(memory, args);
  const Target& target = context.target;
  const int blocks = std::min(std::max(target.multiprocessors, 1), kMostBlocks);
  const auto set = [&](void* begin, int value, const void* end) {
    const auto bytes = static_cast<const char*>(end) - static_cast<const char*>(begin);
    return cudaMemsetAsync(begin, value, static_cast<size_t>(bytes), context.stream);
  };
  TORCHVOX_CUDA_CHECK(set(work.sums, 0, work.row_of + args.rows));
  if (!target.cooperative_launch || sparse_map_plan.value() == 1) {
    for (int step = 0; step < kSteps; ++step) {
      // Blocks that wait for each other must run at once: one does.
      const bool waits = step == kCountLeaves || step == kCountCells;
      TORCHVOX_CUDA_CHECK(launch_blocks(map_kernel, waits ? 1 : blocks, kThreads, context.stream,
                                        args, work, step, step + 1));
    }
    return cudaSuccess;
  }
  TORCHVOX_CUDA_CHECK(set(work.barriers, 0xff, work.barriers + kSteps));
  int first = 0, last = kSteps;
  void* parameters[] = {const_cast<SparseMapArgs*>(&args), &work, &first, &last};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(map_kernel), blocks, kThreads,
                                     parameters, 0, context.stream);
}

}  // namespace torchvox
