// SPDX-License-Identifier: Apache-2.0
//
// The last step: every row of every output, used or not, written once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxelize/large_segment.cuh"
#include "csrc/kernels/voxel/voxelize/points.cuh"
#include "csrc/kernels/voxel/voxelize/sort.cuh"

namespace torchvox {

// One lane a voxel of up to kTinyVoxel points: nothing to share.
template <class Real, ReduceKind kKind>
__device__ void tiny_voxel(const VoxelizeArgs& args, const VoxelWork& work, const Voxel& voxel) {
  const uint32_t* points = work.perm + voxel.segment.place;
  uint32_t low = points[0];
  uint32_t high = low;
  if (voxel.segment.count > 1) {
    high = points[1];
    if (high < low) {
      low = high;
      high = points[0];
    }
  }
  if (args.point_slot != nullptr) {
    if (voxel.segment.count > 1) args.point_slot[high] = voxel.stored > 1 ? 1 : -1;
    args.point_slot[low] = voxel.stored > 0 ? 0 : -1;
  }
  if constexpr (kKind != ReduceKind::kNothing) {
    const int columns = static_cast<int>(args.points.columns);
#pragma unroll 1
    for (int first = 0; first < columns; first += 4) {
      const int n = columns - first < 4 ? columns - first : 4;
      Real a[4], b[4];
      if (voxel.stored > 0) load_four(args, work, voxel.cell, low, first, n, a);
      if (voxel.stored > 1) load_four(args, work, voxel.cell, high, first, n, b);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k >= n) break;
        Real total = 0;
        Best<Real> best;
        if (voxel.stored > 0) {
          add_value<Real, kKind>(args, a[k], low, &total, &best);
        }
        if (voxel.stored > 1) {
          add_value<Real, kKind>(args, b[k], high, &total, &best);
        }
        write_value<Real, kKind>(args, voxel, first + k, total, best);
      }
    }
  }
}

// Voxels of at most `lanes` (8 or 32) points, that many lanes each: rank by comparison with all
// others. `n` is 0 in lanes with nothing to do.
template <class Real, ReduceKind kKind>
__device__ void rank_and_reduce(const VoxelizeArgs& args, const VoxelWork& work, const Voxel& voxel,
                                const uint32_t* points, uint32_t n, int lanes,
                                WarpShared<Real>& shared) {
  const int lane = threadIdx.x % 32;
  const int j = lane & (lanes - 1);
  const int group = lane - j;  // its first lane
  const bool has_point = static_cast<uint32_t>(j) < n;
  const uint32_t point = has_point ? points[j] : kNone32;
  const int others = lanes == 32 ? static_cast<int>(n) : lanes;
  const int columns = static_cast<int>(args.points.columns);
  // A whole point is read while it is ranked; more columns are for stored ones only.
  const bool early = kKind == ReduceKind::kSum && columns == 4 && work.quads;
  Real values[4];
  if (early && has_point) load_four(args, work, voxel.cell, point, 0, 4, values);
  uint32_t rank = 0;
#pragma unroll 4
  for (int k = 0; k < others; ++k) rank += __shfl_sync(kWholeWarp, point, group + k) < point;
  const bool stored = has_point && rank < voxel.stored;
  if (has_point && args.point_slot != nullptr) {
    args.point_slot[point] = stored ? static_cast<int32_t>(rank) : -1;
  }
  uint32_t* order = shared.order + group;
  if (kKind != ReduceKind::kSum && stored) order[rank] = point;
  if constexpr (kKind == ReduceKind::kCopy) {
    __syncwarp();
    for (int source = 0; source < 32; source += lanes) {
      if (__shfl_sync(kWholeWarp, n, source) == 0) continue;
      copy_voxel<Real>(args, work, voxel_of_lane(args, voxel, source), shared.order + source);
    }
  } else if constexpr (kKind != ReduceKind::kNothing) {
    Real* tile = shared.tile + group * kTileStride;
#pragma unroll 1
    for (int first = 0; first < columns; first += kChunkColumns) {
      const int width = columns - first < kChunkColumns ? columns - first : kChunkColumns;
      if (stored && early) {
#pragma unroll
        for (int k = 0; k < 4; ++k) tile[rank * kTileStride + k] = values[k];
      } else if (stored) {
        stage_point(args, work, voxel.cell, point, first, width, tile + rank * kTileStride);
      }
      __syncwarp();
      if (n > 0 && j < width) {
        Real total;
        Best<Real> best;
        reduce_column<Real, kKind>(args, tile + j, order, voxel.stored, &total, &best);
        write_value<Real, kKind>(args, voxel, first + j, total, best);
      }
      __syncwarp();
    }
  }
  __syncwarp();
}

// `count` neighbouring rows by a warp: one lane a row for its index and for tiny voxels, then the
// other small ones four at a time. Crowded voxels have their own list.
template <class Real, ReduceKind kKind>
__device__ void reduce_rows(const VoxelizeArgs& args, const VoxelWork& work, int64_t first_row,
                            int count, uint32_t tiny, WarpShared<Real>& shared) {
  const int lane = threadIdx.x % 32;
  Voxel voxel{};
  if (lane < count) {
    const int64_t row = first_row + lane;
    const uint32_t rank = work.rank_of_row(args, static_cast<uint32_t>(row));
    voxel = make_voxel(args, work, load_whole(&work.segments_by_rank()[rank]), row, true);
    write_row(args, voxel);
  }
  const uint32_t n = voxel.segment.count;
  if (n > 0 && n <= tiny) tiny_voxel<Real, kKind>(args, work, voxel);
  __syncwarp();
  unsigned small = __ballot_sync(kWholeWarp, n > tiny && n <= kSmallVoxel);
#pragma unroll 1
  while (small != 0) {
    int source = -1;  // the lane of this group's voxel
    for (int g = 0; g < 32 / kSmallVoxel && small != 0; ++g) {
      if (g == lane / kSmallVoxel) source = __ffs(static_cast<int>(small)) - 1;
      small &= small - 1;
    }
    const Voxel mine = voxel_of_lane(args, voxel, source >= 0 ? source : 0);
    rank_and_reduce<Real, kKind>(args, work, mine, work.perm + mine.segment.place,
                                 source >= 0 ? mine.segment.count : 0, kSmallVoxel, shared);
  }
}

// A warp a voxel.
template <class Real, ReduceKind kKind>
__device__ void crowded_voxel(const VoxelizeArgs& args, const VoxelWork& work,
                              const CrowdedVoxel& crowded, WarpShared<Real>& shared) {
  VoxelSegment segment{0, crowded.place, crowded.count};
  if (args.center_relative || work.row_needs_key(args)) segment.key = work.segments[crowded.id].key;
  const int64_t row = work.row_of_voxel(args, crowded.id, segment.key);
  if (row < 0 || row >= args.capacity()) return;
  const Voxel voxel = make_voxel(args, work, segment, row, args.center_relative);
  if (work.giants && voxel.stored > kGiantChunk) return;
  const uint32_t* order = work.perm + segment.place;
  if (segment.count <= 32) {
    rank_and_reduce<Real, kKind>(args, work, voxel, order, segment.count, 32, shared);
    return;
  }
  if (segment.count <= work.sort_above) {
    if (kKind != ReduceKind::kNothing || args.point_slot != nullptr) {
      order_segment(args, work, segment, shared.order);
    }
    order = shared.order;
  }
  __syncwarp();
  if constexpr (kKind == ReduceKind::kCopy) {
    copy_voxel<Real>(args, work, voxel, order);
  } else if constexpr (kKind != ReduceKind::kNothing) {
    reduce_voxel<Real, kKind>(args, work, voxel, order, shared.tile);
  }
  __syncwarp();
}

// Bytes [begin, end) of an array, 16 at a time, by the whole grid.
static __device__ __noinline__ void fill(void* array, int64_t begin, int64_t end, uint8_t byte) {
  if (begin >= end) return;
  uint8_t* bytes = static_cast<uint8_t*>(array);
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bytes + begin) % 16);
  int64_t head = begin + (16 - misaligned) % 16;
  if (head > end) head = end;
  const int64_t quads = (end - head) / 16;
  const unsigned word = byte * 0x01010101u;
  uint4* aligned = reinterpret_cast<uint4*>(bytes + head);
#pragma unroll 1
  for (int64_t k = global_thread(); k < quads; k += global_stride()) {
    aligned[k] = make_uint4(word, word, word, word);
  }
  const int64_t loose = (head - begin) + (end - head - 16 * quads);
#pragma unroll 1
  for (int64_t k = global_thread(); k < loose; k += global_stride()) {
    const int64_t at = begin + k < head ? begin + k : head + 16 * quads + (k - (head - begin));
    bytes[at] = byte;
  }
}

// Rows past the last voxel, one a thread; wider features by the byte. Nothing here reads them, so
// they leave the cache first.
__device__ inline void fill_unused_rows(const VoxelizeArgs& args, int64_t rows) {
  const int64_t capacity = args.capacity();
  const int64_t row_bytes =
      args.features != nullptr ? args.row_values() * bytes_of(args.out_dtype) : 0;
#pragma unroll 1
  for (int64_t row = rows + global_thread(); row < capacity; row += global_stride()) {
    __stcs(reinterpret_cast<int4*>(args.indices) + row, make_int4(-1, -1, -1, -1));
    __stcs(args.num_points + row, 0);
    if (row_bytes == 8) __stcs(static_cast<uint2*>(args.features) + row, make_uint2(0, 0));
    if (row_bytes == 16) __stcs(static_cast<uint4*>(args.features) + row, make_uint4(0, 0, 0, 0));
  }
  if (row_bytes != 8 && row_bytes != 16) {
    fill(args.features, row_bytes * rows, row_bytes * capacity, 0);
  }
  if (args.arg != nullptr) {
    fill(args.arg, 4 * args.points.columns * rows, 4 * args.points.columns * capacity, 0xff);
  }
}

// Crowded voxels first, a warp each, from their list: they take longest. Then the other ones of
// `rows` rows, and the counts. A point's row is read once,
// gathered by index. `warps` is shared memory, one for each warp of the block and at least
// kSortChunk words.
template <class Real, ReduceKind kKind>
__device__ void reduce_rest(const VoxelizeArgs& args, const VoxelWork& work, uint32_t rows,
                            WarpShared<Real>* warps) {
  WarpShared<Real>& shared = warps[threadIdx.x / 32];
  if (args.points.rows > work.sort_above) {
    order_long_segments(args, work, reinterpret_cast<uint32_t*>(warps));
  }
  if (blockIdx.x == gridDim.x - 1) write_counts(args, work);
  if constexpr (kKind == ReduceKind::kSum || kKind == ReduceKind::kBest) {
    __shared__ GiantShared<Real> giant;
    const int64_t tasks = work.giants ? work.counters->giant_tasks + 1 : 0;
#pragma unroll 1
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
      giant_chunk<Real, kKind>(args, work, task, shared, giant);
    }
  }
  // Neighbouring tasks go to different blocks, so that the work of a short list spreads; and the
  // last, partial round goes to other schedulers in each of a multiprocessor's blocks.
  const uint32_t block_warps = blockDim.x / 32;
  const uint32_t turn = (threadIdx.x / 32 + 4 * blockIdx.x / gridDim.x) % block_warps;
  const uint32_t warp = turn * gridDim.x + blockIdx.x;
  const uint32_t warp_count = gridDim.x * block_warps;
  const uint32_t crowded = work.counters->crowded + 1;
  // More rows a task as long as all warps have some; then a lane takes a whole tiny voxel.
  uint32_t task_rows = 32 / kSmallVoxel;
  while (task_rows < 32 && rows >= 2 * task_rows * warp_count) task_rows *= 2;
  const bool many = task_rows > 32 / kSmallVoxel;
  const uint32_t tiny = many && kKind != ReduceKind::kCopy ? kTinyVoxel : 0;
  const uint32_t tasks = crowded + (rows + task_rows - 1) / task_rows;
  CrowdedVoxel next{};  // read one task ahead
  if (warp < crowded) next = load_whole(&work.crowded[warp]);
#pragma unroll 1
  for (uint32_t task = warp; task < tasks; task += warp_count) {
    if (task < crowded) {
      const CrowdedVoxel current = next;
      if (task + warp_count < crowded) next = load_whole(&work.crowded[task + warp_count]);
      crowded_voxel<Real, kKind>(args, work, current, shared);
    } else {
      const uint32_t first = (task - crowded) * task_rows;
      const uint32_t count = rows - first < task_rows ? rows - first : task_rows;
      reduce_rows<Real, kKind>(args, work, first, static_cast<int>(count), tiny, shared);
    }
  }
}

}  // namespace torchvox
