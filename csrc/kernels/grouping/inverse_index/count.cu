// SPDX-License-Identifier: Apache-2.0
//
// The kernels of count.cuh. count: one block a partition and tile of rows, one read of an index a
// slot, counts in shared memory. scan: four rows a thread. place: a warp a run of slots, whose
// indices it reads twice; one write of 4 bytes a slot.
#include "csrc/kernels/grouping/inverse_index/count.cuh"

#include "csrc/kernels/core/warp.cuh"

namespace torchvox {
namespace {

constexpr int kCountThreads = 1024;
constexpr int kAhead = 8;  // loads of a thread under way at once
constexpr uint32_t kNoRow = ~0u;

// Which slots and rows a block has: block = (cloud * partitions + partition) * tiles + tile.
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
  // The row of the tile that a slot names, kNoRow where it names none of them.
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
  // A warp a chunk of the scan; tiles are made of whole chunks.
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

// Four rows a thread: where the segment of each begins, and within it the slots of each partition.
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

// Counts of the warps become, for each row, the numbers of slots in the warps before. Two rows
// share a word: partitions are below 2^16, so neither half carries into the other.
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

// Each warp counts the rows of its run of slots, 16 bits each, two to a word; then it walks the run
// again.
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

}  // namespace

cudaError_t launch_count(const InverseIndexArgs& args, const CountPlan& plan, void* workspace,
                         const CudaContext& context) {
  const CountWork work(args.inverse, plan, workspace);
  return args.idx.wide ? launch_index<int64_t>(args, plan, work, context)
                       : launch_index<int32_t>(args, plan, work, context);
}

}  // namespace torchvox
