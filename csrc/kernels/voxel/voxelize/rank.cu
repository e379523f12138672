// SPDX-License-Identifier: Apache-2.0
//
// Ranks of the voxels for the sorted orders: by counting the marked cells below a key, or, when the
// grid is too large for a bit a cell, by a radix sort of the keys that occur.
#include <cub/device/device_radix_sort.cuh>

#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {
namespace {

// Marked cells before each group of 8 words. One group a thread, 32 bytes read, 4 written.
__global__ void __launch_bounds__(kVoxelThreads) count_words_kernel(VoxelWork work) {
  __shared__ ScanShared shared;
  const int64_t tile = block_ticket(&work.counters->word_ticket);
  const int64_t group = tile * kVoxelThreads + threadIdx.x;
  const uint4* words = reinterpret_cast<const uint4*>(work.bitmap) + 2 * group;
  const uint4 a = words[0], b = words[1];
  const int marked = __popc(~a.x) + __popc(~a.y) + __popc(~a.z) + __popc(~a.w) + __popc(~b.x) +
      __popc(~b.y) + __popc(~b.z) + __popc(~b.w);
  uint64_t total;
  uint64_t before = block_prefix(pack_sum(static_cast<uint32_t>(marked), 0), shared, &total);
  before += tile_prefix(work.word_status, tile, total, shared);
  work.word_rank[group] = sum_voxels(before);
}

// One voxel a thread: its rank, and its segment under that rank.
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

// Keys by id; ids that no voxel has sort last.
__global__ void __launch_bounds__(kVoxelThreads) collect_keys_kernel(VoxelWork work) {
  const int64_t voxels = work.totals->voxels;
  for (int64_t id = global_thread(); id < work.voxel_limit; id += global_stride()) {
    work.sort_keys[id] = id < voxels ? work.segments[id].key : kNone64;
    work.sort_ids[id] = static_cast<uint32_t>(id);
  }
}

__global__ void __launch_bounds__(kVoxelThreads) rank_by_sort_kernel(VoxelWork work) {
  const int64_t voxels = work.totals->voxels;
  const uint32_t* sorted_ids = work.sort_ids + work.voxel_limit;
  for (int64_t rank = global_thread(); rank < voxels; rank += global_stride()) {
    const uint32_t id = sorted_ids[rank];
    work.rank_of[id] = static_cast<uint32_t>(rank);
    store_whole(&work.ranked_segments[rank], load_whole(&work.segments[id]));
  }
}

cudaError_t radix_sort(void* storage, size_t* bytes, const uint64_t* keys, uint64_t* sorted_keys,
                       const uint32_t* ids, uint32_t* sorted_ids, int64_t count, int bits,
                       cudaStream_t stream) {
  return cub::DeviceRadixSort::SortPairs(storage, *bytes, keys, sorted_keys, ids, sorted_ids,
                                         static_cast<int>(count), 0, bits, stream);
}

}  // namespace

int64_t voxel_sort_bytes(int64_t voxels) {
  size_t bytes = 0;
  if (voxels == 0) return 0;
  radix_sort(nullptr, &bytes, nullptr, nullptr, nullptr, nullptr, voxels, 64, nullptr);
  return static_cast<int64_t>(bytes);
}

cudaError_t rank_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                        const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(work.voxel_limit, kVoxelThreads, context.target);
  if (work.ranking == VoxelRanking::kByBitmap) {
    count_words_kernel<<<static_cast<unsigned>(work.word_tiles), kVoxelThreads, 0,
                         context.stream>>>(work);
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
    rank_by_bitmap_kernel<<<blocks, kVoxelThreads, 0, context.stream>>>(work);
    return cudaGetLastError();
  }
  if (work.voxel_limit == 0) return cudaSuccess;
  collect_keys_kernel<<<blocks, kVoxelThreads, 0, context.stream>>>(work);
  TORCHVOX_CUDA_CHECK(cudaGetLastError());
  // One bit more than the keys need keeps the unused ids last.
  const uint64_t keys = args.grid.cells_per_sample() * static_cast<uint64_t>(args.points.batches);
  const int bits = std::min(64, bits_for(keys) + 1);
  size_t bytes = static_cast<size_t>(work.sort_bytes);
  TORCHVOX_CUDA_CHECK(radix_sort(
      work.sort_storage, &bytes, work.sort_keys, work.sort_keys + work.voxel_limit, work.sort_ids,
      work.sort_ids + work.voxel_limit, work.voxel_limit, bits, context.stream));
  rank_by_sort_kernel<<<blocks, kVoxelThreads, 0, context.stream>>>(work);
  return cudaGetLastError();
}

}  // namespace torchvox
