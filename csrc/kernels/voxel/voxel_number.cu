// SPDX-License-Identifier: Apache-2.0
//
// Ids in order of first appearance. A point is its voxel's first exactly when the table holds its
// index, so ids and segments are one exclusive sum over the points, in point order.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_scan.cuh"

namespace torchvox {
namespace {

__device__ __forceinline__ uint32_t append(uint32_t* counter, uint32_t n) {
  return atomicAdd(counter, n) + 1;
}

// Reserves places in the list of crowded voxels: one atomic a warp.
__device__ uint32_t reserve_crowded(VoxelCounters* counters, uint32_t n) {
  const int lane = threadIdx.x % 32;
  uint32_t inclusive = n;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t below = __shfl_up_sync(0xffffffffu, inclusive, distance);
    if (lane >= distance) inclusive += below;
  }
  uint32_t base = 0;
  if (lane == 31 && inclusive > 0) base = append(&counters->crowded, inclusive);
  return __shfl_sync(0xffffffffu, base, 31) + inclusive - n;
}

// Long segments become tasks for whole blocks, one a chunk.
__device__ void add_tasks(const VoxelizeArgs& args, const VoxelWork& work, uint32_t id,
                          uint32_t n) {
  if (n > work.sort_above) {
    atomicMin(&work.counters->inverse_longest, kNone32 - n);
    const uint32_t chunks = (n - 1) / kSortChunk + 1;
    const uint32_t base = append(&work.counters->sort_tasks, chunks);
    for (uint32_t c = 0; c < chunks; ++c) work.sort_tasks[base + c] = {id, c};
  }
  const int64_t stored = args.stored(n);
  if (work.giants && stored > kGiantChunk) {
    const uint32_t chunks = static_cast<uint32_t>((stored - 1) / kGiantChunk + 1);
    const uint32_t base = append(&work.counters->giant_tasks, chunks);
    for (uint32_t c = 0; c < chunks; ++c) work.giant_tasks[base + c] = {id, c};
  }
}

// Voxels and rows before each sample; by the last block.
__device__ void write_samples(const VoxelizeArgs& args, const VoxelWork& work, ScanShared& shared) {
  const PackedPoints& points = args.points;
  const uint32_t voxels = sum_voxels(load_relaxed(&work.status[work.tiles - 1]));
  for (int64_t b = threadIdx.x; b <= points.batches; b += kVoxelThreads) {
    const bool at_end = points.offsets.given() ? points.offset(b) >= points.rows : b > 0;
    if (at_end) work.sample_begin[b] = voxels;
    if (!points.offsets.given() && b == 0) work.sample_begin[b] = 0;
  }
  __syncthreads();
  // Offsets in disorder: samples are empty rather than overlapping.
  bool falls = false;
  for (int64_t b = 1 + threadIdx.x; b <= points.batches; b += kVoxelThreads) {
    falls |= load_relaxed(&work.sample_begin[b]) < load_relaxed(&work.sample_begin[b - 1]);
  }
  if (__syncthreads_or(falls)) {
    if (threadIdx.x == 0) {
      uint32_t highest = 0;
      for (int64_t b = 0; b <= points.batches; ++b) {
        const uint32_t voxels_before = load_relaxed(&work.sample_begin[b]);
        highest = voxels_before > highest ? voxels_before : highest;
        store_relaxed(&work.sample_begin[b], highest);
      }
    }
    __syncthreads();
  }
  uint32_t rows = 0;
  for (int64_t first = 0; first < points.batches; first += kVoxelThreads) {
    const int64_t b = first + threadIdx.x;
    uint32_t kept = 0;
    if (b < points.batches) {
      const uint32_t begin = load_relaxed(&work.sample_begin[b]);
      const uint32_t end = load_relaxed(&work.sample_begin[b + 1]);
      kept = end > begin ? end - begin : 0;
      if (args.max_voxels >= 0 && kept > args.max_voxels) {
        kept = static_cast<uint32_t>(args.max_voxels);
      }
    }
    uint64_t total;
    const uint64_t before = block_prefix(kept, shared, &total);
    if (b < points.batches) work.row_begin[b] = rows + static_cast<uint32_t>(before);
    rows += static_cast<uint32_t>(total);
  }
  if (threadIdx.x == 0) {
    work.row_begin[points.batches] = rows;
    if (args.max_voxels < 0) rows = voxels;
    if (rows > args.capacity()) rows = static_cast<uint32_t>(args.capacity());
    *work.totals = {voxels, rows};
  }
}

// Four points a thread. Reads 4 bytes a point in order and one random sector of the table; each
// voxel's first point writes its segment (16 bytes) and leaves the id in the table for the others.
__global__ void __launch_bounds__(kVoxelThreads) number_kernel(VoxelizeArgs args, VoxelWork work) {
  __shared__ ScanShared shared;
  __shared__ uint32_t voxels_before[kTilePoints];
  const PackedPoints& points = args.points;
  const int64_t tile = block_ticket(&work.counters->scan_ticket);
  const int64_t begin = tile * kTilePoints;
  const int64_t row = begin + 4 * threadIdx.x;

  uint32_t slot[4] = {kNone32, kNone32, kNone32, kNone32};
  if (row + 4 <= points.rows) {
    const uint4 four = *reinterpret_cast<const uint4*>(work.slot + row);
    slot[0] = four.x;
    slot[1] = four.y;
    slot[2] = four.z;
    slot[3] = four.w;
  } else {
    for (int k = 0; k < 4; ++k) {
      if (row + k < points.rows) slot[k] = work.slot[row + k];
    }
  }
  VoxelTable::Entry entry[4];
  uint64_t key[4];
  for (int k = 0; k < 4; ++k) {
    entry[k] =
        slot[k] != kNone32 ? work.table.entry(slot[k], &key[k]) : VoxelTable::Entry{kNone32, 0};
  }
  uint64_t sum = 0;
  uint32_t crowded = 0;
  uint32_t count[4];  // 0: not a first point
  for (int k = 0; k < 4; ++k) {
    const bool first = slot[k] != kNone32 && entry[k].first == static_cast<uint32_t>(row + k);
    count[k] = first ? entry[k].count + 1 : 0;
    sum += pack_sum(first, count[k]);
    crowded += count[k] > kSmallVoxel;
  }
  uint32_t crowded_at = reserve_crowded(work.counters, crowded);
  uint64_t total;
  uint64_t before = block_prefix(sum, shared, &total);
  before += tile_prefix(work.status, tile, total, shared);

  for (int k = 0; k < 4; ++k) {
    voxels_before[4 * threadIdx.x + k] = sum_voxels(before);
    if (count[k] == 0) continue;
    const uint32_t id = sum_voxels(before);
    const uint32_t place = sum_points(before);
    work.table.give_id(slot[k], key[k], id, place);
    work.segments[id] = {key[k], place, count[k]};
    if (work.bitmap != nullptr) atomicAnd(&work.bitmap[key[k] / 32], ~(1u << (key[k] % 32)));
    if (count[k] > kSmallVoxel) {
      work.crowded[crowded_at++] = id;
      add_tasks(args, work, id, count[k]);
    }
    before += pack_sum(1, count[k]);
  }
  if (points.offsets.given()) {
    __syncthreads();
    const int64_t end = begin + kTilePoints < points.rows ? begin + kTilePoints : points.rows;
    for (int64_t b = threadIdx.x; b <= points.batches; b += kVoxelThreads) {
      const int64_t offset = points.offset(b);
      if (offset >= begin && offset < end) work.sample_begin[b] = voxels_before[offset - begin];
    }
  }
  if (is_last_block(&work.counters->scan_done, work.tiles)) write_samples(args, work, shared);
}

}  // namespace

cudaError_t number_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  number_kernel<<<static_cast<unsigned>(work.tiles), kVoxelThreads, 0, context.stream>>>(args,
                                                                                         work);
  return cudaGetLastError();
}

}  // namespace torchvox
