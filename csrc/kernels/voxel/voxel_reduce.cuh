// SPDX-License-Identifier: Apache-2.0
//
// The last step: every row of every output, used or not, written once.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_values.cuh"

namespace torchvox {

template <class Real>
struct WarpShared {
  uint32_t order[kWarpSort];
  Real tile[32 * kTileStride];
};

template <class Real>
struct GiantShared {
  Real value[32][kChunkColumns];
  int32_t point[32][kChunkColumns];
  bool last;
};

// Eight lanes a voxel, four neighbouring rows a warp: rank by comparison with the other seven.
template <class Real, ReduceKind kKind>
__device__ void small_voxels(const VoxelizeArgs& args, const VoxelWork& work, int64_t first_row,
                             WarpShared<Real>& shared) {
  const int lane = threadIdx.x % 32;
  const int group = lane / kSmallVoxel;
  const int j = lane % kSmallVoxel;
  const int64_t row = first_row + group;
  Voxel voxel{};
  uint32_t n = 0;  // 0 when there is nothing to do
  if (row < work.totals->rows) {
    const uint32_t rank = work.rank_of_row(args, static_cast<uint32_t>(row));
    voxel = make_voxel(args, work.segments_by_rank()[rank], row);
    if (voxel.segment.count <= kSmallVoxel) n = voxel.segment.count;
  }
  const bool has_point = static_cast<uint32_t>(j) < n;
  const uint32_t point = has_point ? work.perm[int64_t{voxel.segment.place} + j] : kNone32;
  uint32_t rank = 0;
#pragma unroll
  for (int k = 0; k < kSmallVoxel; ++k) {
    rank += __shfl_sync(kWholeWarp, point, k, kSmallVoxel) < point;
  }
  const bool stored = has_point && rank < voxel.stored;
  if (has_point && args.point_slot != nullptr) {
    args.point_slot[point] = stored ? static_cast<int32_t>(rank) : -1;
  }
  uint32_t* order = shared.order + group * kSmallVoxel;
  if (kKind != ReduceKind::kSum && stored) order[rank] = point;
  if constexpr (kKind == ReduceKind::kCopy) {
    __syncwarp();
    for (int g = 0; g < 32 / kSmallVoxel; ++g) {
      const int source = g * kSmallVoxel;
      if (__shfl_sync(kWholeWarp, n, source) == 0) continue;
      Voxel other;
      other.row = first_row + g;
      other.stored = __shfl_sync(kWholeWarp, voxel.stored, source);
      other.cell.x = __shfl_sync(kWholeWarp, voxel.cell.x, source);
      other.cell.y = __shfl_sync(kWholeWarp, voxel.cell.y, source);
      other.cell.z = __shfl_sync(kWholeWarp, voxel.cell.z, source);
      copy_voxel<Real>(args, work, other, shared.order + source);
    }
  } else if constexpr (kKind != ReduceKind::kNothing) {
    Real* tile = shared.tile + group * kSmallVoxel * kTileStride;
    const int columns = static_cast<int>(args.points.columns);
    for (int first = 0; first < columns; first += kChunkColumns) {
      const int width = columns - first < kChunkColumns ? columns - first : kChunkColumns;
      if (stored) {
        stage_point(args, work, voxel.cell, point, first, width, tile + rank * kTileStride);
      }
      __syncwarp();
      if (n > 0 && j < width) {
        Real total;
        Best<Real> best;
        reduce_column<Real, kKind, kSmallVoxel>(args, tile + j, order, voxel.stored, &total, &best);
        write_value<Real, kKind>(args, voxel, first + j, total, best);
      }
      __syncwarp();
    }
  }
  __syncwarp();
}

// A warp a voxel.
template <class Real, ReduceKind kKind>
__device__ void crowded_voxel(const VoxelizeArgs& args, const VoxelWork& work,
                              const CrowdedVoxel& crowded, WarpShared<Real>& shared) {
  const bool with_key = args.center_relative || (args.max_voxels >= 0 && args.points.batches > 1);
  VoxelSegment segment{0, crowded.place, crowded.count};
  if (with_key) segment.key = work.segments[crowded.id].key;
  const int64_t row = work.row_of_voxel(args, crowded.id, segment.key);
  if (row < 0 || row >= args.capacity()) return;
  const Voxel voxel = make_voxel(args, segment, row);
  if (work.giants && voxel.stored > kGiantChunk) return;
  const uint32_t* order = work.perm + segment.place;
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

// A block a chunk of 1,024 stored points: 32 blocks of 32 by the warps, then their sum. The block
// that finishes a voxel's last chunk adds the chunks up.
template <class Real, ReduceKind kKind>
__device__ void giant_chunk(const VoxelizeArgs& args, const VoxelWork& work, int64_t task,
                            WarpShared<Real>& warp_shared, GiantShared<Real>& shared) {
  const SegmentTask chunk = work.giant_tasks[task];
  const VoxelSegment segment = work.segments[chunk.voxel];
  const int64_t row = work.row_of_voxel(args, chunk.voxel, segment.key);
  if (row < 0 || row >= args.capacity()) return;
  const Voxel voxel = make_voxel(args, segment, row);
  const bool smallest = args.reduce == VoxelReduce::kMin;
  const int columns = static_cast<int>(args.points.columns);
  const uint32_t begin = chunk.chunk * kGiantChunk;
  const uint32_t length = voxel.stored - begin < kGiantChunk ? voxel.stored - begin : kGiantChunk;
  const uint32_t* order = work.perm + segment.place + begin;
  Real* values = static_cast<Real*>(work.giant_values);
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < columns; first += kChunkColumns) {
    const int n = columns - first < kChunkColumns ? columns - first : kChunkColumns;
    for (uint32_t b = threadIdx.x / 32; 32 * b < length; b += blockDim.x / 32) {
      const uint32_t count = length - 32 * b < 32 ? length - 32 * b : 32;
      Real part = 0;
      Best<Real> best;
      reduce_block<Real, kKind>(args, work, voxel.cell, order + 32 * b, count, first, n,
                                    warp_shared.tile, &part, &best);
      if (lane < n) {
        shared.value[b][lane] = kKind == ReduceKind::kBest ? best.value : part;
        shared.point[b][lane] = best.point;
      }
    }
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < n) {
      Real sum = 0;  // of whole blocks
      Best<Real> best;
      for (uint32_t b = 0; b < (length + 31) / 32; ++b) {
        if (kKind == ReduceKind::kBest) {
          best.add(shared.value[b][lane], shared.point[b][lane], smallest);
        } else if (32 * b + 32 <= length) {
          sum += shared.value[b][lane];
        }
      }
      const int64_t at = 2 * task * columns + first + lane;
      values[at] = kKind == ReduceKind::kBest ? best.value : sum;
      values[at + columns] = length % 32 ? shared.value[length / 32][lane] : Real(0);
      if (kKind == ReduceKind::kBest) work.giant_points[task * columns + first + lane] = best.point;
    }
    __syncthreads();
  }

  const int64_t first_task = task - chunk.chunk;
  const uint32_t chunks = (voxel.stored - 1) / kGiantChunk + 1;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = atomicAdd(&work.giant_done[first_task], 1u) + 1 == chunks - 1;
  }
  __syncthreads();
  if (shared.last) {
    __threadfence();
    for (int column = threadIdx.x; column < columns; column += blockDim.x) {
      CascadeSum<Real> sum;
      Best<Real> best;
      for (uint32_t c = 0; c < chunks; ++c) {
        const Real value = values[2 * (first_task + c) * columns + column];
        if (kKind == ReduceKind::kBest) {
          best.add(value, work.giant_points[(first_task + c) * columns + column], smallest);
        } else if (voxel.stored - c * kGiantChunk >= kGiantChunk) {
          sum.template add_block<2>(value);
        } else {
          sum.template add_rest<1>(value);
          sum.template add_rest<0>(values[(2 * (first_task + c) + 1) * columns + column]);
        }
      }
      write_value<Real, kKind>(args, voxel, column, sum.total(), best);
    }
  }
  __syncthreads();
}

// Bytes [begin, end) of an array, 16 at a time, by the whole grid.
__device__ inline void fill(void* array, int64_t begin, int64_t end, uint8_t byte) {
  if (begin >= end) return;
  uint8_t* bytes = static_cast<uint8_t*>(array);
  const int64_t misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(bytes + begin) % 16);
  int64_t head = begin + (16 - misaligned) % 16;
  if (head > end) head = end;
  const int64_t quads = (end - head) / 16;
  const unsigned word = byte * 0x01010101u;
  uint4* aligned = reinterpret_cast<uint4*>(bytes + head);
  for (int64_t k = global_thread(); k < quads; k += global_stride()) {
    aligned[k] = make_uint4(word, word, word, word);
  }
  const int64_t loose = (head - begin) + (end - head - 16 * quads);
  for (int64_t k = global_thread(); k < loose; k += global_stride()) {
    const int64_t at = begin + k < head ? begin + k : head + 16 * quads + (k - (head - begin));
    bytes[at] = byte;
  }
}

// Indices and num_points, one thread a row: 20 bytes written for 16 read.
template <class Real>
__device__ void write_rows(const VoxelizeArgs& args, const VoxelWork& work, int64_t rows) {
  const int64_t capacity = args.capacity();
  for (int64_t row = global_thread(); row < capacity; row += global_stride()) {
    int4 index = make_int4(-1, -1, -1, -1);
    int32_t stored = 0;
    if (row < rows) {
      const uint32_t rank = work.rank_of_row(args, static_cast<uint32_t>(row));
      const VoxelSegment segment = work.segments_by_rank()[rank];
      int64_t sample;
      const Cell cell = args.grid.cell_of(segment.key, &sample);
      index = make_int4(static_cast<int>(sample), cell.z, cell.y, cell.x);
      stored = static_cast<int32_t>(args.stored(segment.count));
    }
    reinterpret_cast<int4*>(args.indices)[row] = index;
    args.num_points[row] = stored;
  }
}

__device__ inline void fill_unused_rows(const VoxelizeArgs& args, int64_t rows) {
  const int64_t capacity = args.capacity();
  if (args.features != nullptr) {
    const int64_t row_bytes = args.row_values() * bytes_of(args.out_dtype);
    fill(args.features, row_bytes * rows, row_bytes * capacity, 0);
  }
  if (args.arg != nullptr) {
    fill(args.arg, 4 * args.points.columns * rows, 4 * args.points.columns * capacity, 0xff);
  }
}

// Crowded voxels first, a warp each, from their list: they take longest. Then eight lanes a voxel
// over all rows, then what needs no points. A point's row is read once, gathered by index. `warps`
// is shared memory, one for each warp of the block.
template <class Real, ReduceKind kKind>
__device__ void reduce_all(const VoxelizeArgs& args, const VoxelWork& work,
                           WarpShared<Real>* warps) {
  WarpShared<Real>& shared = warps[threadIdx.x / 32];
  if constexpr (kKind == ReduceKind::kSum || kKind == ReduceKind::kBest) {
    __shared__ GiantShared<Real> giant;
    const int64_t tasks = work.giants ? work.counters->giant_tasks + 1 : 0;
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
      giant_chunk<Real, kKind>(args, work, task, shared, giant);
    }
  }
  // Warps of one block stride over the grid, so that no block has all the work of a short list.
  const int64_t warp = (threadIdx.x / 32) * int64_t{gridDim.x} + blockIdx.x;
  const int64_t stride = global_stride() / 32;
  const int64_t crowded = work.counters->crowded + 1;
  for (int64_t k = warp; k < crowded; k += stride) {
    crowded_voxel<Real, kKind>(args, work, work.crowded[k], shared);
  }
  const int64_t rows = work.totals->rows;
  constexpr int kRows = 32 / kSmallVoxel;
  for (int64_t row = kRows * warp; row < rows; row += kRows * stride) {
    small_voxels<Real, kKind>(args, work, row, shared);
  }
  write_rows<Real>(args, work, rows);
  fill_unused_rows(args, rows);
}

}  // namespace torchvox
