// SPDX-License-Identifier: Apache-2.0
//
// Inverse indices on the GPU. A counting sort of the slots of each cloud by row, if its rows can be
// counted in shared memory; for more rows a stable radix sort of the slots by (cloud, row).
//
// Counting splits slots into partitions, one per block, and these into runs, one per warp. The
// place of a slot is the number of slots before it, so that the order of execution does not matter.
#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {
namespace {

// Writes what the sums need of a row, whose segment is [begin, end): the groups that begin after it
// and, if it is long, a task for each of its chunks. The tasks of a row are consecutive; the order
// of rows among tasks does not matter. Called by one thread per row.
__device__ void schedule_row(const InverseIndex& inverse, int64_t cloud, int64_t row,
                             uint32_t begin, uint32_t end) {
  int32_t* const group_rows = inverse.group_rows + cloud * (inverse.groups() + 1);
  const auto next = static_cast<int32_t>(row + 1);
  int64_t group = (int64_t{begin} + row) / kGroupKeys + 1;
  int64_t last = (int64_t{end} + row + 1) / kGroupKeys;
  if (row == 0) group_rows[0] = 0;
  if (row + 1 == inverse.rows) last = inverse.groups();
  for (; group <= last; ++group) group_rows[group] = next;

  const uint32_t slots = end - begin;
  if (slots <= kSumChunk) return;
  const int chunks = static_cast<int>((slots + kSumChunk - 1) / kSumChunk);
  const int first = atomicAdd(inverse.long_rows.count, chunks);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    inverse.long_rows.tasks[first + chunk] = {static_cast<int32_t>(cloud),
                                              static_cast<int32_t>(row), chunk, first};
  }
  inverse.long_rows.arrived[first] = 0;
}

constexpr int kPlaceThreads = 512;  // at most
constexpr int kScanThreads = 256;
constexpr int kScanRows = 4 * kScanThreads;  // per block of the scan

struct CountPlan {
  bool fits = false;
  int warps = 1;  // per block that places; each has its own counts of all rows of the tile
  int64_t tiles = 1;  // of rows, each with its own blocks
  int64_t tile_rows = 0;
  int64_t partitions = 1;  // of a cloud's slots
  int64_t partition_slots = 0;
  int64_t warp_slots = 0;  // slots of a warp's run
  int64_t row_stride = 0;  // of counts: rows, rounded up to whole 16 bytes
  int64_t chunks = 0;  // of kScanRows rows, one per block of the scan

  static CountPlan of(const InverseIndex& inverse, const Target& target);
  size_t count_bytes() const { return static_cast<size_t>(tile_rows) * sizeof(uint32_t); }
  size_t place_bytes() const { return static_cast<size_t>(warps * tile_rows) * sizeof(uint16_t); }
};

struct CountWork {
  uint32_t* counts;  // [clouds, partitions, row_stride]
  uint32_t* chunk_totals;  // [clouds, partitions, chunks]

  CountWork(const InverseIndex& inverse, const CountPlan& plan, Workspace& workspace)
      : counts(workspace.take<uint32_t>(inverse.clouds * plan.partitions * plan.row_stride)),
        chunk_totals(workspace.take<uint32_t>(inverse.clouds * plan.partitions * plan.chunks)) {}
};

constexpr int kCountThreads = 1024;
constexpr int kAhead = 8;  // loads of a thread in flight at once
constexpr uint32_t kNoRow = ~0u;

// The slots and rows of a block: block = (cloud * partitions + partition) * tiles + tile.
struct PartitionTile {
  int64_t cloud, partition;
  uint32_t first_row, rows;
  uint32_t begin, end;  // slots of the cloud

  __device__ PartitionTile(const InverseIndex& inverse, const CountPlan& plan) {
    const int64_t share = int64_t{blockIdx.x} / plan.tiles;
    const int64_t row = (blockIdx.x - share * plan.tiles) * plan.tile_rows;
    cloud = share / plan.partitions;
    partition = share - cloud * plan.partitions;
    first_row = static_cast<uint32_t>(row);
    rows = static_cast<uint32_t>(min(plan.tile_rows, inverse.rows - row));
    begin = static_cast<uint32_t>(min(partition * plan.partition_slots, inverse.slots));
    end = static_cast<uint32_t>(min(int64_t{begin} + plan.partition_slots, inverse.slots));
  }
  // The row of the tile that a slot names, or kNoRow.
  __device__ uint32_t row_of(int32_t index) const {
    const uint32_t row = static_cast<uint32_t>(index) - first_row;  // below 0: beyond every tile
    return row < rows ? row : kNoRow;
  }
  __device__ uint32_t row_of(int64_t index) const {
    const bool narrow = index >= 0 && index <= INT32_MAX;
    return narrow ? row_of(static_cast<int32_t>(index)) : kNoRow;
  }
};

__device__ __forceinline__ void clear(uint32_t* words, uint32_t count) {
  for (uint32_t i = threadIdx.x; i < count / 4; i += blockDim.x) {
    reinterpret_cast<uint4*>(words)[i] = {};
  }
}

// One block per partition of slots and tile of rows: reads the indices, counts rows in shared
// memory, writes the counts and their sums over the chunks of the scan.
template <class Index>
__global__ void __launch_bounds__(kCountThreads)
    count_kernel(const Index* idx, const __grid_constant__ InverseIndex inverse,
                 const __grid_constant__ CountPlan plan, const __grid_constant__ CountWork work) {
  extern __shared__ __align__(16) uint32_t row_counts[];
  let_next_begin();
  const PartitionTile tile(inverse, plan);
  if (blockIdx.x == 0 && threadIdx.x == 0) *inverse.long_rows.count = 0;
  clear(row_counts, static_cast<uint32_t>(plan.tile_rows));
  __syncthreads();
  idx += tile.cloud * inverse.slots;
  for (uint32_t slot = tile.begin + threadIdx.x; slot < tile.end; slot += kAhead * kCountThreads) {
    uint32_t row[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const uint32_t s = slot + k * kCountThreads;
      row[k] = s < tile.end ? tile.row_of(idx[s]) : kNoRow;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (row[k] != kNoRow) atomicAdd(&row_counts[row[k]], 1u);
    }
  }
  __syncthreads();
  const int64_t counted = tile.cloud * plan.partitions + tile.partition;
  auto* const counts =
      reinterpret_cast<uint4*>(work.counts + counted * plan.row_stride + tile.first_row);
  const auto written = static_cast<uint32_t>(min(plan.tile_rows, plan.row_stride - tile.first_row));
  const auto* const quads = reinterpret_cast<const uint4*>(row_counts);
  for (uint32_t i = threadIdx.x; i < written / 4; i += kCountThreads) counts[i] = quads[i];
  // One warp per chunk of the scan; a tile is a whole number of chunks.
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t begin = threadIdx.x / 32 * kScanRows; begin < written;
       begin += kCountThreads / 32 * kScanRows) {
    uint32_t sum = 0;
    const uint32_t end = min(begin + kScanRows, written) / 4;
    for (uint32_t i = begin / 4 + lane; i < end; i += 32) {
      sum += (quads[i].x + quads[i].y) + (quads[i].z + quads[i].w);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      work.chunk_totals[counted * plan.chunks + (tile.first_row + begin) / kScanRows] = sum;
    }
  }
}

// One thread per four rows: reads the counts of all partitions, writes where the segment of each
// row begins and, in place of the counts, where the slots of each partition begin in it.
__global__ void __launch_bounds__(kScanThreads)
    scan_kernel(const __grid_constant__ InverseIndex inverse,
                const __grid_constant__ CountPlan plan, const __grid_constant__ CountWork work) {
  __shared__ uint32_t sums[32];
  let_next_begin();
  wait_for_previous();
  const int64_t cloud = int64_t{blockIdx.x} / plan.chunks;
  const int64_t chunk = blockIdx.x - cloud * plan.chunks;
  uint32_t before = 0;  // slots of the rows of earlier chunks
  const uint32_t* const totals = work.chunk_totals + cloud * plan.partitions * plan.chunks;
  for (int64_t i = threadIdx.x; i < plan.partitions * chunk; i += kScanThreads) {
    before += totals[i / chunk * plan.chunks + i % chunk];
  }
  uint32_t begin;
  block_prefix(before, sums, &begin);

  const int64_t row = chunk * kScanRows + 4 * threadIdx.x;
  const bool inside = row < plan.row_stride;
  uint4* counts =
      reinterpret_cast<uint4*>(work.counts + cloud * plan.partitions * plan.row_stride + row);
  const int64_t stride = plan.row_stride / 4;
  uint4 sum = {};
  for (int64_t partition = 0; inside && partition < plan.partitions; ++partition) {
    const uint4 count = counts[partition * stride];
    sum.x += count.x;
    sum.y += count.y;
    sum.z += count.z;
    sum.w += count.w;
  }
  uint32_t total;
  begin += block_prefix(sum.x + sum.y + sum.z + sum.w, sums, &total);
  uint4 at = {begin, begin + sum.x, begin + sum.x + sum.y, begin + sum.x + sum.y + sum.z};
  int32_t* const offsets = inverse.offsets + cloud * (inverse.rows + 1);
  const uint32_t begins[5] = {at.x, at.y, at.z, at.w, at.w + sum.w};
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (row + k >= inverse.rows) break;
    offsets[row + k] = static_cast<int32_t>(begins[k]);
    schedule_row(inverse, cloud, row + k, begins[k], begins[k + 1]);
    if (row + k == inverse.rows - 1) offsets[inverse.rows] = static_cast<int32_t>(begins[k + 1]);
  }
  for (int64_t partition = 0; inside && partition < plan.partitions; ++partition) {
    const uint4 count = counts[partition * stride];
    counts[partition * stride] = at;
    at.x += count.x;
    at.y += count.y;
    at.z += count.z;
    at.w += count.w;
  }
}

// Turns the counts of the warps into the number of slots in earlier warps, for each row. Two rows
// share a word: partitions have fewer than 2^16 slots, so neither half carries into the other.
__device__ __forceinline__ void scan_warps(uint32_t* words, uint32_t words_per_warp, int warps) {
  constexpr int kAtOnce = 4;
  const uint32_t quads = words_per_warp / 4;
  for (uint32_t i = threadIdx.x; i < quads; i += blockDim.x) {
    uint4 before = {};
    for (int first = 0; first < warps; first += kAtOnce) {
      uint4 count[kAtOnce];
      auto* const column = reinterpret_cast<uint4*>(words) + first * quads + i;
#pragma unroll
      for (int w = 0; w < kAtOnce; ++w) {
        if (first + w < warps) count[w] = column[w * quads];
      }
#pragma unroll
      for (int w = 0; w < kAtOnce; ++w) {
        if (first + w >= warps) break;
        column[w * quads] = before;
        before = {before.x + count[w].x, before.y + count[w].y, before.z + count[w].z,
                  before.w + count[w].w};
      }
    }
  }
}

// One block per partition of slots and tile of rows. Each warp counts the rows of its run of slots,
// 16 bits each, two per word; then it walks the run again in order and writes each slot to its
// place.
template <class Index>
__global__ void __launch_bounds__(kPlaceThreads)
    place_kernel(const Index* idx, const __grid_constant__ InverseIndex inverse,
                 const __grid_constant__ CountPlan plan, const __grid_constant__ CountWork work) {
  extern __shared__ __align__(16) uint32_t words[];
  let_next_begin();
  const PartitionTile tile(inverse, plan);
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto words_per_warp = static_cast<uint32_t>(plan.tile_rows / 2);
  clear(words, plan.warps * words_per_warp);
  __syncthreads();
  idx += tile.cloud * inverse.slots;
  const uint32_t begin = min(static_cast<uint32_t>(tile.begin + warp * plan.warp_slots), tile.end);
  const uint32_t end = min(static_cast<uint32_t>(begin + plan.warp_slots), tile.end);
  uint32_t* const my_words = words + warp * words_per_warp;
  for (uint32_t slot = begin + lane; slot < end; slot += 2 * kAhead * 32) {
    uint32_t row[2 * kAhead];
#pragma unroll
    for (int k = 0; k < 2 * kAhead; ++k) {
      row[k] = slot + 32 * k < end ? tile.row_of(idx[slot + 32 * k]) : kNoRow;
    }
#pragma unroll
    for (int k = 0; k < 2 * kAhead; ++k) {
      if (row[k] != kNoRow) atomicAdd(&my_words[row[k] / 2], row[k] % 2 ? 0x10000u : 1u);
    }
  }
  __syncthreads();
  scan_warps(words, words_per_warp, plan.warps);
  __syncthreads();
  wait_for_previous();
  auto* const placed = reinterpret_cast<uint16_t*>(my_words);
  const uint32_t* const starts = work.counts +
      (tile.cloud * plan.partitions + tile.partition) * plan.row_stride + tile.first_row;
  int32_t* const order = inverse.order + tile.cloud * inverse.slots;
  uint32_t next[kAhead];  // rows of the slots to come
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    const uint32_t s = begin + 32 * k + lane;
    next[k] = s < end ? tile.row_of(idx[s]) : kNoRow;
  }
  for (uint32_t slot = begin; slot < end; slot += kAhead * 32) {
    uint32_t row[kAhead], start[kAhead];
    unsigned same[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      row[k] = next[k];
      start[k] = row[k] != kNoRow ? starts[row[k]] : 0;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const uint32_t s = slot + 32 * (kAhead + k) + lane;
      next[k] = s < end ? tile.row_of(idx[s]) : kNoRow;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) same[k] = __match_any_sync(kFullWarp, row[k]);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const uint32_t before = row[k] != kNoRow ? placed[row[k]] : 0;
      const uint32_t rank = __popc(same[k] & lanes_below(lane));
      __syncwarp();
      if (row[k] != kNoRow && rank == 0) {
        placed[row[k]] = static_cast<uint16_t>(before + __popc(same[k]));
      }
      __syncwarp();
      start[k] += before + rank;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (row[k] != kNoRow) order[start[k]] = static_cast<int32_t>(slot + 32 * k + lane);
    }
  }
}

template <class Index>
cudaError_t launch_index(const InverseIndexArgs& args, const CountPlan& plan, const CountWork& work,
                         const CudaContext& context) {
  const InverseIndex& inverse = args.inverse;
  const auto* const idx = static_cast<const Index*>(args.idx.data);
  const auto blocks = static_cast<unsigned>(inverse.clouds * plan.partitions * plan.tiles);
  for (const void* kernel : {reinterpret_cast<const void*>(count_kernel<Index>),
                             reinterpret_cast<const void*>(place_kernel<Index>)}) {
    TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             context.target.shared_bytes));
  }
  TORCHVOX_CUDA_CHECK(launch_sharing(count_kernel<Index>, blocks, kCountThreads, plan.count_bytes(),
                                     context.stream, idx, inverse, plan, work));
  const auto scan_blocks = static_cast<unsigned>(inverse.clouds * plan.chunks);
  TORCHVOX_CUDA_CHECK(
      launch_after(scan_kernel, dim3(scan_blocks), kScanThreads, context, inverse, plan, work));
  return launch_after_sharing(place_kernel<Index>, dim3(blocks), dim3(32u * plan.warps),
                              plan.place_bytes(), context, idx, inverse, plan, work);
}

CountPlan CountPlan::of(const InverseIndex& inverse, const Target& target) {
  constexpr int64_t kFewestWarps = 4, kMostWarps = kPlaceThreads / 32, kMostTiles = 2;
  constexpr int64_t kRunAtLeast = 4 * 32, kPartBelow = 1 << 16;
  constexpr int64_t kCountsAtMost = int64_t{1} << 28;  // bytes
  CountPlan plan;
  if (inverse.rows == 0 || inverse.slots == 0 || inverse.clouds == 0) return plan;
  const int64_t most_rows = target.shared_bytes /
      (kFewestWarps * static_cast<int64_t>(sizeof(uint16_t))) / kScanRows * kScanRows;
  if (most_rows == 0) return plan;
  plan.chunks = ceil_div<int64_t>(inverse.rows, kScanRows);
  plan.row_stride = ceil_div<int64_t>(inverse.rows, 8) * 8;
  plan.tile_rows = plan.row_stride;
  if (plan.tile_rows > most_rows) {
    const int64_t tiles = ceil_div(inverse.rows, most_rows);
    plan.tile_rows = ceil_div(plan.chunks, tiles) * kScanRows;
  }
  plan.tiles = ceil_div(inverse.rows, plan.tile_rows);
  const int64_t warps =
      target.shared_bytes / (plan.tile_rows * static_cast<int64_t>(sizeof(uint16_t)));
  plan.warps = static_cast<int>(std::min(warps, kMostWarps));

  const int64_t resident =
      std::min<int64_t>(target.shared_bytes / static_cast<int64_t>(plan.place_bytes()), 2);
  const int64_t blocks = resident * target.multiprocessors;
  const int64_t useful = inverse.slots / (plan.warps * kRunAtLeast);
  const int64_t needed = ceil_div(inverse.slots, kPartBelow - 32 * kMostWarps);
  const int64_t partitions =
      std::max<int64_t>({std::min(blocks / (inverse.clouds * plan.tiles), useful), needed, 1});
  plan.warp_slots = ceil_div(ceil_div(inverse.slots, partitions), int64_t{plan.warps} * 32) * 32;
  plan.partition_slots = plan.warp_slots * plan.warps;
  plan.partitions = ceil_div(inverse.slots, plan.partition_slots);
  plan.fits = plan.tiles <= kMostTiles &&
      inverse.clouds * plan.partitions * plan.row_stride <= kCountsAtMost / 4 &&
      inverse.clouds * plan.partitions * plan.tiles < (int64_t{1} << 31) &&
      inverse.clouds * plan.chunks < (int64_t{1} << 31);
  return plan;
}

constexpr int kThreads = 256;
constexpr int64_t kSlotsAtOnce = int64_t{1} << 26;  // bounds the buffers of the sort: 1 GiB

// The slots of several clouds are sorted by (cloud, row). Slots without a row come last in their
// cloud, so that each cloud keeps its place.
int64_t clouds_at_once(const InverseIndex& inverse) {
  const int64_t by_slots = kSlotsAtOnce / std::max<int64_t>(inverse.slots, 1);
  const int64_t by_keys = ((int64_t{1} << 32) - 1) / (inverse.rows + 1);
  return std::min(std::max<int64_t>(std::min(by_slots, by_keys), 1), inverse.clouds);
}

// One thread per slot: reads its index, writes (cloud, row) and the slot for the sort.
__global__ void __launch_bounds__(kThreads)
    keys_kernel(InverseIndexArgs args, SortBuffers buffers, int64_t first_cloud, int64_t count) {
  const InverseIndex& inverse = args.inverse;
  for (int64_t i = global_thread(); i < count; i += global_stride()) {
    const int64_t cloud = i / inverse.slots;
    const int64_t row = args.idx[first_cloud * inverse.slots + i];
    const bool named = row >= 0 && row < inverse.rows;
    buffers.keys[0][i] =
        static_cast<uint32_t>(cloud * (inverse.rows + 1) + (named ? row : inverse.rows));
    buffers.values[0][i] = static_cast<uint32_t>(i - cloud * inverse.slots);
  }
}

// One thread per row and slot: thread i finds where segment i begins among the sorted keys, and
// copies slot i of the order.
__global__ void __launch_bounds__(kThreads)
    offsets_kernel(InverseIndex inverse, SortBuffers buffers, int64_t first_cloud, int64_t clouds) {
  const uint32_t* const keys = buffers.keys[buffers.current];
  const int64_t count = clouds * (inverse.rows + 1), slots = clouds * inverse.slots;
  for (int64_t i = global_thread(); i < count || i < slots; i += global_stride()) {
    if (i < count) {
      const int64_t begin = i / (inverse.rows + 1) * inverse.slots;
      const int64_t at =
          first_where(begin, begin + inverse.slots, [&](int64_t k) { return keys[k] >= i; });
      inverse.offsets[first_cloud * (inverse.rows + 1) + i] = static_cast<int32_t>(at - begin);
    }
    if (i < slots) {
      inverse.order[first_cloud * inverse.slots + i] =
          static_cast<int32_t>(buffers.values[buffers.current][i]);
    }
  }
}

// One thread per row: reads its segment, writes its groups and tasks.
__global__ void __launch_bounds__(kThreads) schedule_kernel(InverseIndex inverse) {
  for (int64_t i = global_thread(); i < inverse.clouds * inverse.rows; i += global_stride()) {
    const int64_t cloud = i / inverse.rows;
    const int32_t* const range = inverse.offsets + i + cloud;
    schedule_row(inverse, cloud, i - cloud * inverse.rows, range[0], range[1]);
  }
}

cudaError_t launch_sort(const InverseIndexArgs& args, void* workspace, const CudaContext& context) {
  const InverseIndex& inverse = args.inverse;
  const int64_t at_once = clouds_at_once(inverse), rows = inverse.clouds * inverse.rows;
  Workspace memory(workspace);
  SortBuffers buffers(at_once * inverse.slots, memory);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(inverse.long_rows.count, 0, sizeof(int32_t), context.stream));
  for (int64_t first = 0; first < inverse.clouds; first += at_once) {
    const int64_t clouds = std::min(inverse.clouds - first, at_once);
    const int64_t slots = clouds * inverse.slots, offsets = clouds * (inverse.rows + 1);
    buffers.current = 0;
    if (slots > 0) {
      TORCHVOX_CUDA_CHECK(
          launch_items(keys_kernel, slots, kThreads, context, args, buffers, first, slots));
      TORCHVOX_CUDA_CHECK(radix_sort(buffers, slots, key_bits(offsets), context.stream));
    }
    TORCHVOX_CUDA_CHECK(launch_items(offsets_kernel, std::max(slots, offsets), kThreads, context,
                                     inverse, buffers, first, clouds));
  }
  return launch_items(schedule_kernel, rows, kThreads, context, inverse);
}

// The plan of the counting sort; if it does not fit, slots are sorted. Both give the same inverse
// index.
CountPlan plan_for(const InverseIndexArgs& args, const Target& target) {
  CountPlan plan = CountPlan::of(args.inverse, target);
  plan.fits = plan.fits && inverse_index_plan.value() != 1;
  return plan;
}

}  // namespace

int64_t workspace_bytes_cuda(const InverseIndexArgs& args, const Target& target) {
  const CountPlan plan = plan_for(args, target);
  if (plan.fits) return carved_bytes<CountWork>(args.inverse, plan);
  return carved_bytes<SortBuffers>(clouds_at_once(args.inverse) * args.inverse.slots);
}

cudaError_t launch(const InverseIndexArgs& args, void* workspace, const CudaContext& context) {
  const CountPlan plan = plan_for(args, context.target);
  if (!plan.fits) return launch_sort(args, workspace, context);
  const auto work = carve<CountWork>(workspace, args.inverse, plan);
  return args.idx.wide ? launch_index<int64_t>(args, plan, work, context)
                       : launch_index<int32_t>(args, plan, work, context);
}

}  // namespace torchvox
