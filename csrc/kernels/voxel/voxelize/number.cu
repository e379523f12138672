// SPDX-License-Identifier: Apache-2.0
//
// Ids in order of first appearance. A point is its voxel's first exactly if the table has its index
// in the voxel's entry, so ids and segments are one exclusive sum over the points in their order.
// Then, for sorted orders, come the ranks.
#include <algorithm>
#include <cub/device/device_radix_sort.cuh>
#include <type_traits>

#include "csrc/kernels/spatial/scan.cuh"
#include "csrc/kernels/voxel/voxelize/number.cuh"
#include "csrc/kernels/voxel/voxelize/points.cuh"
#include "csrc/kernels/voxel/voxelize/table.cuh"

namespace torchvox {
namespace {

// The points [begin, end) of a block, one per thread.
struct BlockRange {
  int64_t begin, end;

  __device__ static BlockRange of_block(const VoxelizeArgs& args) {
    const int64_t begin = int64_t{blockIdx.x} * kVoxelThreads;
    const int64_t rest = args.points.rows - begin;
    return {begin, rest < kVoxelThreads ? args.points.rows : begin + kVoxelThreads};
  }
};

// One thread per point: reads x, y, z, finds the cell and adds the point to the table. Writes 8
// bytes per point and accesses one 32-byte sector of the table for each voxel of the warp. More
// points per thread would not be faster: later blocks find the voxels of earlier ones in the table.
template <class Real, bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) insert_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ BlockTally tally;
  const BlockRange range = BlockRange::of_block(args);
  const int64_t row = range.begin + threadIdx.x;
  BlockTally::begin(args.points, range.begin, range.end, tally);
  const LoadedPoint<Real> point = load_point<Real>(args, work, row, range.end, tally.samples);
  using Key = std::conditional_t<kCommon, uint32_t, uint64_t>;  // a common key is short
  int column;
  const Key key = static_cast<Key>(locate_point(args, point, &column));
  const MatchingLanes matching = MatchingLanes::of(key);
  wait_for_previous();
  tally.add<kPointsOutOfRange, kPointsNotFinite>(work, point.sample, column);
  insert_row(work, key, matching, row, range.end);
  let_next_begin();
  tally.flush(work);
}

// The same for points whose keys are given.
__global__ void __launch_bounds__(kVoxelThreads)
    insert_keys_kernel(VoxelizeArgs args, VoxelWork work) {
  const BlockRange range = BlockRange::of_block(args);
  const int64_t row = range.begin + threadIdx.x;
  uint64_t key = row < range.end ? static_cast<uint64_t>(args.keys[row]) : kNone64;
  if (key >= args.key_limit()) key = kNone64;
  const MatchingLanes matching = MatchingLanes::of(key);
  wait_for_previous();
  insert_row(work, key, matching, row, range.end);
  let_next_begin();
}

// One thread per point: from its slot to its voxel's id and segment, and from there to its row.
// Writes the point to perm and its row to point_voxel. One random read of 16 bytes and one random
// write of 4.
template <bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) place_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ BlockTally tally;
  const BlockRange range = BlockRange::of_block(args);
  const int64_t row = range.begin + threadIdx.x;
  BlockTally::begin(args.points, range.begin, range.end, tally);
  wait_for_previous();
  const uint32_t slot = row < range.end ? work.slot[row] : kNone32;
  const uint32_t arrival = row < range.end ? work.arrival[row] : 0;
  VoxelTable::Entry entry{kNone32, 0};
  if (slot != kNone32) {
    uint64_t key;
    entry = work.table.entry(slot, &key);
    work.perm[int64_t{entry.count} + arrival] = static_cast<uint32_t>(row);
  }
  finish_point(args, work, row, range.end, entry.first, arrival, tally);
  let_next_begin();
  tally.flush(work);
}

unsigned point_blocks(const VoxelizeArgs& args) {
  return static_cast<unsigned>(ceil_div<int64_t>(args.points.rows, kVoxelThreads));
}

template <class Real, bool kCommon = false>
cudaError_t launch_insert(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  return launch_after(insert_kernel<Real, kCommon>, point_blocks(args), kVoxelThreads, context,
                      args, work);
}

constexpr int kAtOnce = 4;  // candidates of a thread whose reads overlap

// The points of a tile that may be first ones, in point order.
struct Candidates {
  ScanShared scan;
  uint16_t point[kTilePoints];  // in the tile
  // `place` is the slot; a count of 0 means not a first point. Later `count` is the id of the next
  // voxel from the candidate on.
  VoxelSegment voxel[kTilePoints];
};

// Reads the voxels of candidate `c` and every 256th from there on, kAtOnce in all.
__device__ __forceinline__ void read_candidates(const VoxelWork& work, uint32_t begin, uint32_t c,
                                                uint32_t candidates, Candidates& shared) {
  uint32_t point[kAtOnce];
  VoxelSegment voxel[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const uint32_t at = c + k * kVoxelThreads;
    point[k] = begin + (at < candidates ? shared.point[at] : 0);
    voxel[k].place = at < candidates ? work.slot[point[k]] : 0;
  }
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    if (c + k * kVoxelThreads >= candidates) continue;
    const VoxelTable::Entry entry = work.table.entry(voxel[k].place, &voxel[k].key);
    voxel[k].count = entry.first == point[k] ? entry.count + 1 : 0;
  }
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    if (c + k * kVoxelThreads < candidates) shared.voxel[c + k * kVoxelThreads] = voxel[k];
  }
}

// One block per tile of 1,024 points, taken in order. Each thread reads the bits of four points and
// lists those that may be first ones. The list is divided among the threads again; each candidate
// reads its slot and one random sector of the table. Each voxel's first point writes its segment
// (16 bytes) and the id into the table for the others.
template <bool kCommon>
__global__ void __launch_bounds__(kVoxelThreads) number_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  __shared__ Candidates shared;
  const CloudBatch& points = args.points;
  wait_for_previous();
  const int64_t tile = block_ticket(&work.counters->scan_ticket);
  const int64_t begin = tile * kTilePoints;

  const int64_t row = begin + kTileEach * threadIdx.x;
  constexpr uint32_t kBits = (1u << kTileEach) - 1;
  uint32_t maybe = row < points.rows ? work.maybe_first[row / 32] >> row % 32 & kBits : 0;
  uint32_t candidates;
  uint32_t at = block_prefix(static_cast<uint32_t>(__popc(maybe)), shared.scan.sums, &candidates);
  for (; maybe != 0; maybe &= maybe - 1) {
    shared.point[at++] = static_cast<uint16_t>(kTileEach * threadIdx.x + __ffs(maybe) - 1);
  }
  __syncthreads();

#pragma unroll 1
  for (uint32_t c = threadIdx.x; c < candidates; c += kAtOnce * kVoxelThreads) {
    read_candidates(work, static_cast<uint32_t>(begin), c, candidates, shared);
  }
  __syncthreads();

  const uint32_t each = (candidates + kVoxelThreads - 1) / kVoxelThreads;
  const uint32_t first = min(threadIdx.x * each, candidates);
  const uint32_t last = min(first + each, candidates);
  uint64_t sum = 0;
  uint32_t large = 0;
#pragma unroll 1
  for (uint32_t c = first; c < last; ++c) {
    const uint32_t count = shared.voxel[c].count;
    sum += pack_sum(count != 0, count);
    large += count > kSmallSegment;
  }
  uint64_t total;
  uint64_t before = block_prefix(sum, shared.scan.sums, &total);
  const auto places = LargePlaces::reserve(work.counters, large);
  const uint64_t tiles_before = tile_prefix(work.status, tile, total, shared.scan);
  if (tile == work.tiles - 1 && threadIdx.x == 0) {
    store_relaxed(&work.totals->voxels, sum_voxels(tiles_before + total));
  }
  before += tiles_before;
  uint32_t large_at = places.first();

  for (uint32_t c = first; c < last; ++c) {
    const VoxelSegment voxel = shared.voxel[c];
    const uint32_t id = sum_voxels(before);
    if (points.offsets.given()) shared.voxel[c].count = id;
    if (voxel.count == 0) continue;
    const uint32_t place = sum_points(before);
    work.table.give_id(voxel.place, voxel.key, id, place);
    add_voxel(args, work, id, {voxel.key, place, voxel.count}, &large_at);
    if (args.first_point != nullptr) {
      args.first_point[id] = static_cast<int32_t>(begin + shared.point[c]);
    }
    if (work.bitmap != nullptr) {
      atomicAnd(&work.bitmap[voxel.key / 32], ~(1u << (voxel.key % 32)));
    }
    before += pack_sum(1, voxel.count);
  }
  let_next_begin();
  if (points.offsets.given()) {
    __syncthreads();
    const int64_t end = begin + kTilePoints < points.rows ? begin + kTilePoints : points.rows;
    for (int64_t b = threadIdx.x; b <= points.clouds; b += kVoxelThreads) {
      const int64_t offset = points.offset(b);
      if (offset < begin || offset >= end) continue;
      const uint32_t c =  // the first candidate from the offset on
          first_where(0u, candidates,
                      [&](uint32_t c) { return begin + shared.point[c] >= offset; });
      work.sample_begin[b] =
          c < candidates ? shared.voxel[c].count : sum_voxels(tiles_before + total);
    }
  }
  const bool is_last = points.offsets.given() ? is_last_block(&work.counters->scan_done, work.tiles)
                                              : tile == work.tiles - 1;
  if (is_last) write_samples(args, work, shared.scan);
}

// Ranks of the voxels for sorted orders: by counting the marked cells below a key, or, when the
// grid is too large for one bit per cell, by a radix sort of the keys that occur.

// One thread per group of 8 words: the number of marked cells before it. Reads 32 bytes, writes 4.
__global__ void __launch_bounds__(kVoxelThreads) count_words_kernel(VoxelWork work) {
  __shared__ ScanShared shared;
  const int64_t tile = block_ticket(&work.counters->word_ticket);
  const int64_t group = tile * kVoxelThreads + threadIdx.x;
  const uint4* words = reinterpret_cast<const uint4*>(work.bitmap) + 2 * group;
  const uint4 a = words[0], b = words[1];
  const int marked = __popc(~a.x) + __popc(~a.y) + __popc(~a.z) + __popc(~a.w) + __popc(~b.x) +
      __popc(~b.y) + __popc(~b.z) + __popc(~b.w);
  uint64_t total;
  uint64_t before = block_prefix(pack_sum(static_cast<uint32_t>(marked), 0), shared.sums, &total);
  before += tile_prefix(work.word_status, tile, total, shared);
  work.word_rank[group] = sum_voxels(before);
}

// One thread per voxel: writes its rank, and its segment by rank.
__global__ void __launch_bounds__(kVoxelThreads) rank_by_bitmap_kernel(VoxelWork work) {
  const int64_t voxels = work.totals->voxels;
  for (int64_t id = global_thread(); id < voxels; id += global_stride()) {
    const VoxelSegment segment = load_whole(&work.segments[id]);
    const uint64_t word = segment.key / 32;
    uint32_t rank = work.word_rank[word / kBitmapWords];
    for (uint64_t w = word / kBitmapWords * kBitmapWords; w < word; ++w) {
      rank += static_cast<uint32_t>(__popc(~work.bitmap[w]));
    }
    rank += static_cast<uint32_t>(__popc(~work.bitmap[word] & ((1u << (segment.key % 32)) - 1)));
    work.rank_of[id] = rank;
    store_whole(&work.ranked_segments[rank], segment);
  }
}

// One thread per id that may exist: writes its voxel's key for the sort; ids without a voxel sort
// last.
__global__ void __launch_bounds__(kVoxelThreads) collect_keys_kernel(VoxelWork work) {
  const int64_t voxels = work.totals->voxels;
  for (int64_t id = global_thread(); id < work.voxel_limit; id += global_stride()) {
    work.sort_keys[id] = id < voxels ? work.segments[id].key : kNone64;
    work.sort_ids[id] = static_cast<uint32_t>(id);
  }
}

// One thread per voxel by rank: reads its id from the sorted ones, and writes its rank and its
// segment by rank.
__global__ void __launch_bounds__(kVoxelThreads) rank_by_sort_kernel(VoxelWork work) {
  const int64_t voxels = work.totals->voxels;
  const uint32_t* sorted_ids = work.sort_ids + work.voxel_limit;
  for (int64_t rank = global_thread(); rank < voxels; rank += global_stride()) {
    const uint32_t id = sorted_ids[rank];
    work.rank_of[id] = static_cast<uint32_t>(rank);
    store_whole(&work.ranked_segments[rank], load_whole(&work.segments[id]));
  }
}

// Sorts voxels by key. With null storage it only sets *bytes to the size that it needs.
cudaError_t sort_voxels(const VoxelWork& work, size_t* bytes, int bits, cudaStream_t stream) {
  const int64_t limit = work.voxel_limit;
  return cub::DeviceRadixSort::SortPairs(
      work.sort_storage, *bytes, work.sort_keys, work.sort_keys + limit, work.sort_ids,
      work.sort_ids + limit, static_cast<int>(limit), 0, bits, stream);
}

}  // namespace

cudaError_t insert_points(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  if (args.keys != nullptr) {
    return launch_after(insert_keys_kernel, point_blocks(args), kVoxelThreads, context, args, work);
  }
  if (work.common) return launch_insert<float, true>(args, work, context);
  return args.points.dtype == DType::kDouble ? launch_insert<double>(args, work, context)
                                             : launch_insert<float>(args, work, context);
}

cudaError_t place_points(const VoxelizeArgs& args, const VoxelWork& work,
                         const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  return launch_after(work.common ? place_kernel<true> : place_kernel<false>, point_blocks(args),
                      kVoxelThreads, context, args, work);
}

cudaError_t number_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  const unsigned blocks = static_cast<unsigned>(work.tiles);
  return work.common
      ? launch_after(number_kernel<true>, blocks, kVoxelThreads, context, args, work)
      : launch_after(number_kernel<false>, blocks, kVoxelThreads, context, args, work);
}

int64_t voxel_sort_bytes(const VoxelWork& work) {
  size_t bytes = 0;
  if (work.voxel_limit > 0) sort_voxels(work, &bytes, 64, nullptr);
  return static_cast<int64_t>(bytes);
}

cudaError_t rank_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                        const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const int64_t limit = work.voxel_limit;
  if (work.ranking == VoxelRanking::kByBitmap) {
    TORCHVOX_CUDA_CHECK(launch_blocks(count_words_kernel, static_cast<unsigned>(work.word_tiles),
                                      kVoxelThreads, context.stream, work));
    return launch_items(rank_by_bitmap_kernel, limit, kVoxelThreads, context, work);
  }
  if (limit == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(launch_items(collect_keys_kernel, limit, kVoxelThreads, context, work));
  // One bit more than the keys need keeps ids without a voxel last.
  const int bits = std::min(64, bits_for(args.key_limit()) + 1);
  size_t bytes = static_cast<size_t>(work.sort_bytes);
  TORCHVOX_CUDA_CHECK(sort_voxels(work, &bytes, bits, context.stream));
  return launch_items(rank_by_sort_kernel, limit, kVoxelThreads, context, work);
}

}  // namespace torchvox
