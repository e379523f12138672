// SPDX-License-Identifier: Apache-2.0
//
// sparse_schedule on the GPU.
//
//   count_kernel  keys of rows; how many rows of a block have each
//   place_kernel  rows, stably by key
//   tile_kernel   what the rows of each tile read
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sparse/schedule.h"

namespace torchvox {
namespace {

constexpr int kKeys = SparseSchedule::kKeys;  // and threads of a block, one per key
constexpr int kTile = SparseSchedule::kTile;
constexpr int kTileThreads = 256;

// One block per share of the rows, one thread per row in turn. Reads the table; writes keys and
// the block's counts.
__global__ void __launch_bounds__(kKeys)
    count_kernel(const __grid_constant__ SparseTable table,
                 const __grid_constant__ SparseKernelSize size,
                 const __grid_constant__ SparseOrderWork work) {
  __shared__ int counts[kKeys];
  __shared__ unsigned bits[kKeys];
  let_next_begin();
  const int64_t begin = blockIdx.x * work.share, end = min(begin + work.share, table.rows);
  const int64_t valid = table.valid(), limit = table.valid_sources();
  counts[threadIdx.x] = 0;
  if (threadIdx.x < table.volume) bits[threadIdx.x] = schedule_bits(size, threadIdx.x);
  __syncthreads();
  for (int64_t row = begin + threadIdx.x; row < end; row += kKeys) {
    const int64_t volume = row < valid ? table.volume : 0;
    unsigned has = 0;
#pragma unroll 9
    for (int k = 0; k < volume; ++k) has |= table.at(k, row, limit) >= 0 ? bits[k] : 0;
    const unsigned key = schedule_key(has);
    work.keys[row] = static_cast<uint16_t>(key);
    atomicAdd(&counts[key], 1);
  }
  __syncthreads();
  work.counts[blockIdx.x * kKeys + threadIdx.x] = counts[threadIdx.x];
}

// One block per share of the rows, one thread per key, then per row in turn. Reads keys and counts;
// writes the rows, behind those of lower keys and, with their own, of earlier blocks and warps.
__global__ void __launch_bounds__(kKeys)
    place_kernel(const __grid_constant__ SparseOrderWork work, int64_t rows, int32_t* order) {
  __shared__ int next[kKeys], sums[32];
  let_next_begin();
  wait_for_previous();
  int before = 0, all = 0, total;
#pragma unroll 8
  for (int block = 0; block < work.blocks; ++block) {
    const int count = work.counts[block * kKeys + threadIdx.x];
    before += block < static_cast<int>(blockIdx.x) ? count : 0;
    all += count;
  }
  next[threadIdx.x] = block_prefix(all, sums, &total) + before;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t begin = blockIdx.x * work.share, end = min(begin + work.share, rows);
  for (int64_t first = begin; first < end; first += kKeys) {
    const int64_t row = first + threadIdx.x;
    const unsigned key = row < end ? work.keys[row] : kKeys + lane;
    const unsigned same = __match_any_sync(kFullWarp, key);
    const int warps = static_cast<int>(min(ceil_div<int64_t>(end - first, 32), int64_t{32}));
    int place = 0;
    for (int turn = 0; turn < warps; ++turn) {
      __syncthreads();
      if (turn != warp) continue;
      const unsigned lower = same & lanes_below(lane);
      if (row < end) place = next[key] + __popc(lower);
      __syncwarp();
      if (row < end && lower == 0) next[key] += __popc(same);
    }
    if (row < end) order[place] = static_cast<int32_t>(row);
  }
}

// One block per tile of rows, a thread per row and every second offset. Reads the table and the
// order, which is that of the table if not `sorted`; writes the rest of the schedule.
__global__ void __launch_bounds__(kTileThreads)
    tile_kernel(const __grid_constant__ SparseTable table,
                const __grid_constant__ SparseSchedule schedule, bool sorted) {
  __shared__ uint32_t offsets[SparseSchedule::kWords];
  let_next_begin();
  wait_for_previous();
  if (threadIdx.x < SparseSchedule::kWords) offsets[threadIdx.x] = 0;
  __syncthreads();
  const int volume = static_cast<int>(table.volume);
  const int64_t place = int64_t{blockIdx.x} * kTile + threadIdx.x % kTile;
  int32_t row = -1;
  if (place < table.rows) row = sorted ? schedule.order[place] : static_cast<int32_t>(place);
  const bool used = row >= 0 && row < table.valid();
  const int64_t limit = table.valid_sources();
  int32_t* to = schedule.sources + int64_t{blockIdx.x} * volume * kTile + threadIdx.x % kTile;
#pragma unroll 7
  for (int k = threadIdx.x / kTile; k < volume; k += kTileThreads / kTile) {
    const int32_t source = used ? table.at(k, row, limit) : -1;
    to[k * kTile] = source;
    if (__any_sync(kFullWarp, source >= 0) && threadIdx.x % 32 == 0) {
      atomicOr(&offsets[k / 32], 1u << k % 32);
    }
  }
  if (threadIdx.x < kTile && !(sorted && row >= 0)) schedule.order[place] = row;
  __syncthreads();
  if (threadIdx.x < SparseSchedule::kWords) {
    schedule.offsets[blockIdx.x * SparseSchedule::kWords + threadIdx.x] = offsets[threadIdx.x];
  }
}

}  // namespace

SparseOrderWork::SparseOrderWork(int64_t rows, Workspace& workspace)
    : share(std::max<int64_t>(
          ceil_div(rows, std::min<int64_t>(std::max<int64_t>(rows >> 14, 64), 1024)), kKeys)),
      blocks(static_cast<int>(ceil_div(rows, share))),
      counts(workspace.take<int32_t>(int64_t{blocks} * kKeys)),
      keys(workspace.take<uint16_t>(rows)) {}

cudaError_t launch_order(const SparseTable& table, const SparseKernelSize& size,
                         const SparseOrderWork& work, int32_t* order, const CudaContext& context) {
  const auto blocks = static_cast<unsigned>(work.blocks);
  TORCHVOX_CUDA_CHECK(
      launch_blocks(count_kernel, blocks, kKeys, context.stream, table, size, work));
  return launch_after(place_kernel, blocks, kKeys, context, work, table.rows, order);
}

cudaError_t launch_tiles(const SparseTable& table, const SparseSchedule& schedule, bool sorted,
                         const CudaContext& context) {
  const unsigned blocks = grid_x(schedule.tiles);
  return sorted
      ? launch_after(tile_kernel, blocks, kTileThreads, context, table, schedule, sorted)
      : launch_blocks(tile_kernel, blocks, kTileThreads, context.stream, table, schedule, sorted);
}

int64_t workspace_bytes_cuda(const SparseScheduleArgs& args, const Target&) {
  return carved_bytes<SparseOrderWork>(args.table.rows);
}
cudaError_t launch(const SparseScheduleArgs& args, void* memory, const CudaContext& context) {
  const SparseTable& table = args.table;
  if (table.rows == 0) return cudaSuccess;
  const SparseSchedule schedule(table.volume, table.rows, args.out);
  const auto work = carve<SparseOrderWork>(memory, table.rows);
  TORCHVOX_CUDA_CHECK(launch_order(table, args.kernel_size, work, schedule.order, context));
  return launch_tiles(table, schedule, true, context);
}

}  // namespace torchvox
