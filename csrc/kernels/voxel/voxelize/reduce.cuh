// SPDX-License-Identifier: Apache-2.0
//
// The last step writes every row of every output, used or not, once. A segment of one or two points
// is reduced by one lane, a small one by eight lanes, and a large one by a warp. Segments with more
// than 1,024 stored points are split among blocks, and those that are too long for a warp to order
// are sorted by blocks first. Points are read once, gathered by index.
#pragma once

#include "csrc/kernels/voxel/voxelize/points.cuh"
#include "csrc/kernels/voxel/voxelize/values.cuh"

namespace torchvox {

// Orders the points of long segments: sorts chunks of 4,096 in shared memory, then merges runs
// twice as long each time.
//
// Every task of phase p waits for all tasks of phase p - 1. Blocks take pairs (phase, task) by an
// ascending ticket, so a block only waits for blocks that already run: they need not all be
// resident at once.

struct SortedChunk {
  VoxelSegment segment;
  int64_t row;  // -1: the voxel is not kept, so its points need no order
  uint32_t begin;  // first position in the segment
  uint32_t length;
};

__device__ inline SortedChunk chunk_of(const VoxelizeArgs& args, const VoxelWork& work,
                                       uint32_t task) {
  const SegmentTask t = work.sort_tasks[task];
  SortedChunk chunk;
  chunk.segment = work.segments[t.voxel];
  chunk.row = work.row_of_voxel(args, t.voxel, chunk.segment.key);
  chunk.begin = t.chunk * kSortChunk;
  const uint32_t rest = chunk.segment.count - chunk.begin;
  chunk.length = rest < kSortChunk ? rest : kSortChunk;
  return chunk;
}

// Writes a point's slot, its position in the segment, which is final in the last phase.
__device__ inline void finish(const VoxelizeArgs& args, bool last_phase, uint32_t point,
                              uint32_t position) {
  if (!last_phase || args.point_slot == nullptr) return;
  const bool stored = args.max_points < 0 || position < args.max_points;
  args.point_slot[point] = stored ? static_cast<int32_t>(position) : -1;
}

// One block sorts one chunk.
__device__ inline void sort_chunk(const VoxelizeArgs& args, const SortedChunk& chunk,
                                  uint32_t* perm, uint32_t* values, bool last_phase) {
  uint32_t* segment = perm + chunk.segment.place + chunk.begin;
  bitonic_sort(segment, chunk.length, values, threadIdx.x, blockDim.x, [] { __syncthreads(); });
  for (uint32_t k = threadIdx.x; k < chunk.length; k += blockDim.x) {
    segment[k] = values[k];
    finish(args, last_phase, values[k], chunk.begin + k);
  }
}

// One block moves each point of a chunk to its place in the merger of its run with the neighboring
// run: its place in its own run plus the number of smaller points in the other.
__device__ inline void merge_chunk(const VoxelizeArgs& args, const SortedChunk& chunk,
                                   const uint32_t* from, uint32_t* to, uint64_t run,
                                   bool last_phase) {
  const uint32_t* segment = from + chunk.segment.place;
  const uint64_t own = chunk.begin / run, count = chunk.segment.count;
  uint64_t other_begin = (own ^ 1) * run;
  if (other_begin > count) other_begin = count;
  const uint64_t other_end = other_begin + run < count ? other_begin + run : count;
  const uint64_t merged = (own & ~uint64_t{1}) * run;  // where the merger begins
  for (uint32_t k = threadIdx.x; k < chunk.length; k += blockDim.x) {
    const uint64_t position = uint64_t{chunk.begin} + k;
    const uint32_t point = segment[position];
    const uint64_t other =
        first_where(other_begin, other_end, [&](uint64_t k) { return segment[k] >= point; });
    const uint64_t target = merged + (position - own * run) + (other - other_begin);
    to[chunk.segment.place + target] = point;
    finish(args, last_phase, point, static_cast<uint32_t>(target));
  }
}

// Orders every long segment and returns when all are ordered. Each block of the grid calls;
// `values` is [kSortChunk] in shared memory.
__device__ inline void order_long_segments(const VoxelizeArgs& args, const VoxelWork& work,
                                           uint32_t* values) {
  VoxelCounters* counters = work.counters;
  const uint32_t tasks = counters->sort_tasks + 1;
  if (tasks == 0) return;
  // An even number of merges leaves the result in perm.
  uint32_t merges = 0;
  const uint64_t longest = kNone32 - counters->inverse_longest;
  while ((uint64_t{kSortChunk} << merges) < longest) ++merges;
  merges += merges & 1;
  uint32_t* other = work.arrival;  // no longer needed
  for (;;) {
    const uint32_t ticket = static_cast<uint32_t>(block_ticket(&counters->sort_ticket));
    const uint32_t phase = ticket / tasks;
    const uint32_t earlier = (phase <= merges ? phase : merges + 1) * tasks;
    if (threadIdx.x == 0) {
      while (load_relaxed(&counters->sort_done) + 1 < earlier) {
      }
      __threadfence();
    }
    __syncthreads();
    if (phase > merges) return;
    const SortedChunk chunk = chunk_of(args, work, ticket % tasks);
    if (chunk.row >= 0) {
      if (phase == 0) {
        sort_chunk(args, chunk, work.perm, values, merges == 0);
      } else {
        merge_chunk(args, chunk, phase % 2 ? work.perm : other, phase % 2 ? other : work.perm,
                    uint64_t{kSortChunk} << (phase - 1), phase == merges);
      }
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&counters->sort_done, 1u);
  }
}

// Shared memory of a warp: the points of a segment in order, and values of 32 of them.
template <class Real>
struct WarpShared {
  uint32_t order[kWarpSort];
  Real tile[32 * kTileStride];
};

// Shared memory of a block for reduce_split_chunk(): results of 32 blocks of 32 points.
template <class Real>
struct SplitShared {
  Real value[32][kChunkColumns];
  int32_t point[32][kChunkColumns];
  bool last;
};

// One block reduces a chunk of 1,024 stored points of a split segment, by the levels of CascadeSum:
// warps reduce groups of 32 points, then the block adds up the 32 groups. The block that finishes
// the last chunk of a voxel adds up its chunks.
template <class Real, ReduceKind kKind>
__device__ void reduce_split_chunk(const VoxelizeArgs& args, const VoxelWork& work, int64_t task,
                                   WarpShared<Real>& warp_shared, SplitShared<Real>& shared) {
  const SegmentTask chunk = work.split_tasks[task];
  const VoxelSegment segment = work.segments[chunk.voxel];
  const int64_t row = work.row_of_voxel(args, chunk.voxel, segment.key);
  if (row < 0 || row >= args.capacity()) return;
  const Voxel voxel = make_voxel(args, work, segment, row, args.center_relative);
  const bool smallest = args.reduce == VoxelReduce::kMin;
  const int columns = static_cast<int>(args.points.columns);
  const uint32_t begin = chunk.chunk * kSplitChunk;
  const uint32_t length = voxel.stored - begin < kSplitChunk ? voxel.stored - begin : kSplitChunk;
  const uint32_t* order = work.perm + segment.place + begin;
  Real* values = static_cast<Real*>(work.split_values);
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
      if (kKind == ReduceKind::kBest) work.split_points[task * columns + first + lane] = best.point;
    }
    __syncthreads();
  }

  const int64_t first_task = task - chunk.chunk;
  const uint32_t chunks = (voxel.stored - 1) / kSplitChunk + 1;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.last = atomicAdd(&work.split_done[first_task], 1u) + 1 == chunks - 1;
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
          best.add(value, work.split_points[(first_task + c) * columns + column], smallest);
        } else if (voxel.stored - c * kSplitChunk >= kSplitChunk) {
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

// One lane reduces a segment of up to kLaneSegment points, without help from others.
template <class Real, ReduceKind kKind>
__device__ void reduce_in_lane(const VoxelizeArgs& args, const VoxelWork& work,
                               const Voxel& voxel) {
  const uint32_t* points = work.perm + voxel.segment.place;
  uint32_t low = points[0], high = low;
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

// Groups of `lanes` (8 or 32) lanes each reduce a voxel of at most as many points, `points` [n]: a
// lane finds its point's rank by comparing it with all others. `n` is 0 in groups without a voxel.
template <class Real, ReduceKind kKind>
__device__ void rank_and_reduce(const VoxelizeArgs& args, const VoxelWork& work, const Voxel& voxel,
                                const uint32_t* points, uint32_t n, int lanes,
                                WarpShared<Real>& shared) {
  const int lane = threadIdx.x % 32, j = lane & (lanes - 1);
  const int group = lane - j;  // its first lane
  const bool has_point = static_cast<uint32_t>(j) < n;
  const uint32_t point = has_point ? points[j] : kNone32;
  const int others = lanes == 32 ? static_cast<int>(n) : lanes;
  const int columns = static_cast<int>(args.points.columns);
  // Points of four floats are read while they are ranked, others only if they are stored.
  const bool early = kKind == ReduceKind::kSum && columns == 4 && work.quads;
  Real values[4];
  if (early && has_point) load_four(args, work, voxel.cell, point, 0, 4, values);
  uint32_t rank = 0;
#pragma unroll 4
  for (int k = 0; k < others; ++k) rank += __shfl_sync(kFullWarp, point, group + k) < point;
  const bool stored = has_point && rank < voxel.stored;
  if (has_point && args.point_slot != nullptr) {
    args.point_slot[point] = stored ? static_cast<int32_t>(rank) : -1;
  }
  uint32_t* order = shared.order + group;
  if (kKind != ReduceKind::kSum && stored) order[rank] = point;
  if constexpr (kKind == ReduceKind::kCopy) {
    __syncwarp();
    for (int source = 0; source < 32; source += lanes) {
      if (__shfl_sync(kFullWarp, n, source) == 0) continue;
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

// A warp writes `count` neighboring rows: one lane per row for its index and for segments that a
// lane reduces, then the other small ones, four at a time. Large segments have their own list.
template <class Real, ReduceKind kKind>
__device__ void reduce_rows(const VoxelizeArgs& args, const VoxelWork& work, int64_t first_row,
                            int count, uint32_t lane_limit, WarpShared<Real>& shared) {
  const int lane = threadIdx.x % 32;
  Voxel voxel{};
  if (lane < count) {
    const int64_t row = first_row + lane;
    const uint32_t rank = work.rank_of_row(args, static_cast<uint32_t>(row));
    voxel = make_voxel(args, work, load_whole(&work.segments_by_rank()[rank]), row, true);
    write_row(args, voxel);
  }
  const uint32_t n = voxel.segment.count;
  if (n > 0 && n <= lane_limit) reduce_in_lane<Real, kKind>(args, work, voxel);
  __syncwarp();
  unsigned small = __ballot_sync(kFullWarp, n > lane_limit && n <= kSmallSegment);
#pragma unroll 1
  while (small != 0) {
    int source = -1;  // the lane of this group's voxel
    for (int g = 0; g < 32 / kSmallSegment && small != 0; ++g) {
      if (g == lane / kSmallSegment) source = __ffs(static_cast<int>(small)) - 1;
      small &= small - 1;
    }
    const Voxel mine = voxel_of_lane(args, voxel, source >= 0 ? source : 0);
    rank_and_reduce<Real, kKind>(args, work, mine, work.perm + mine.segment.place,
                                 source >= 0 ? mine.segment.count : 0, kSmallSegment, shared);
  }
}

// A warp reduces a large segment.
template <class Real, ReduceKind kKind>
__device__ void reduce_large(const VoxelizeArgs& args, const VoxelWork& work,
                             const LargeSegment& large, WarpShared<Real>& shared) {
  VoxelSegment segment{0, large.place, large.count};
  if (args.center_relative || work.row_needs_key(args)) segment.key = work.segments[large.id].key;
  const int64_t row = work.row_of_voxel(args, large.id, segment.key);
  if (row < 0 || row >= args.capacity()) return;
  const Voxel voxel = make_voxel(args, work, segment, row, args.center_relative);
  if (work.splits && voxel.stored > kSplitChunk) return;
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

// The threads of the grid set bytes [begin, end) of an array, 16 at a time.
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

// Fills the rows past the last voxel, one per thread; features of other widths than 8 or 16 bytes
// with fill(). No kernel here reads them, so the stores are marked to leave the cache first.
__device__ inline void fill_unused_rows(const VoxelizeArgs& args, int64_t rows) {
  const int64_t capacity = args.capacity();
  const int64_t row_bytes =
      args.features != nullptr ? args.row_values() * bytes_of(args.out_dtype) : 0;
#pragma unroll 1
  for (int64_t row = rows + global_thread(); row < capacity; row += global_stride()) {
    if (args.keys != nullptr) {
      __stcs(reinterpret_cast<long long*>(args.row_keys) + row, -1ll);
    } else {
      __stcs(reinterpret_cast<int4*>(args.indices) + row, make_int4(-1, -1, -1, -1));
    }
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

// Reduces the long segments, then the large ones, one per warp, which take longest, then the small
// ones of `rows` rows, and writes the counts. `warps` is shared memory, one for each warp of the
// block and at least kSortChunk words.
template <class Real, ReduceKind kKind>
__device__ void reduce_rest(const VoxelizeArgs& args, const VoxelWork& work, uint32_t rows,
                            WarpShared<Real>* warps) {
  WarpShared<Real>& shared = warps[threadIdx.x / 32];
  if (args.points.rows > work.sort_above) {
    order_long_segments(args, work, reinterpret_cast<uint32_t*>(warps));
  }
  if (blockIdx.x == gridDim.x - 1) write_counts(args, work);
  if constexpr (kKind == ReduceKind::kSum || kKind == ReduceKind::kBest) {
    __shared__ SplitShared<Real> split;
    const int64_t tasks = work.splits ? work.counters->split_tasks + 1 : 0;
#pragma unroll 1
    for (int64_t task = blockIdx.x; task < tasks; task += gridDim.x) {
      reduce_split_chunk<Real, kKind>(args, work, task, shared, split);
    }
  }
  // Neighboring tasks go to different blocks, so that a short list is spread over the GPU. `turn`
  // differs between the blocks of a multiprocessor, so that the warps that get a task in the last,
  // partial round are on different schedulers.
  const uint32_t block_warps = blockDim.x / 32;
  const uint32_t turn = (threadIdx.x / 32 + 4 * blockIdx.x / gridDim.x) % block_warps;
  const uint32_t warp = turn * gridDim.x + blockIdx.x;
  const uint32_t warp_count = gridDim.x * block_warps, large = work.counters->large + 1;
  // As many rows per task as leave every warp some. With many rows a lane reduces a whole segment
  // of one or two points.
  uint32_t task_rows = 32 / kSmallSegment;
  while (task_rows < 32 && rows >= 2 * task_rows * warp_count) task_rows *= 2;
  const bool many = task_rows > 32 / kSmallSegment;
  const uint32_t lane_limit = many && kKind != ReduceKind::kCopy ? kLaneSegment : 0;
  const uint32_t tasks = large + (rows + task_rows - 1) / task_rows;
  LargeSegment next{};  // read one task ahead
  if (warp < large) next = load_whole(&work.large[warp]);
#pragma unroll 1
  for (uint32_t task = warp; task < tasks; task += warp_count) {
    if (task < large) {
      const LargeSegment current = next;
      if (task + warp_count < large) next = load_whole(&work.large[task + warp_count]);
      reduce_large<Real, kKind>(args, work, current, shared);
    } else {
      const uint32_t first = (task - large) * task_rows;
      const uint32_t count = rows - first < task_rows ? rows - first : task_rows;
      reduce_rows<Real, kKind>(args, work, first, static_cast<int>(count), lane_limit, shared);
    }
  }
}

// Selects the kernel of a call; Kernels::of<Real, kind, common>() returns the instances.
using VoxelKernel = void (*)(VoxelizeArgs, VoxelWork);

template <class Kernels, class Real>
VoxelKernel kernel_of(const VoxelizeArgs& args) {
  if (args.reduce == VoxelReduce::kNone) return Kernels::template of<Real, ReduceKind::kCopy>();
  return args.is_best() ? Kernels::template of<Real, ReduceKind::kBest>()
                        : Kernels::template of<Real, ReduceKind::kSum>();
}
template <class Kernels>
VoxelKernel kernel_for(const VoxelizeArgs& args, const VoxelWork& work) {
  if (args.features == nullptr) return Kernels::template of<float, ReduceKind::kNothing>();
  if (work.common && args.reduce == VoxelReduce::kNone) {
    return Kernels::template of<float, ReduceKind::kCopy, true>();
  }
  if (work.common) return Kernels::template of<float, ReduceKind::kSum, true>();
  return args.points.dtype == DType::kDouble ? kernel_of<Kernels, double>(args)
                                             : kernel_of<Kernels, float>(args);
}

}  // namespace torchvox
