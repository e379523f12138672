// SPDX-License-Identifier: Apache-2.0
//
// All steps of voxelize in one cooperative launch, for clouds small enough that every block can
// keep its partition of consecutive points in shared memory. For a single scan, separate launches
// and passing each point's slot and arrival through global memory would take most of the time.
#include <algorithm>
#include <type_traits>

#include "csrc/kernels/voxel/voxelize/block_local.cuh"
#include "csrc/kernels/voxel/voxelize/number.cuh"

namespace torchvox {
namespace {

// Ids in point order; one thread takes `per_thread` neighboring points. Blocks publish how many
// voxels begin in them, and how many points their large segments have, and add up those of all
// earlier blocks.
__device__ void number_partition(const VoxelizeArgs& args, const VoxelWork& work,
                                 const BlockPartition& partition, FusedShared& shared) {
  const int first = threadIdx.x * partition.per_thread;
  const int last = min(first + partition.per_thread, partition.count);
  // Points in the low bits, voxels in the high ones. plan_fused() checks that both fit.
  const auto sum_of = [](uint32_t count) {
    return (1u << kFusedRowBits) + (count > kSmallSegment ? count : 0);
  };
  const auto wide = [](uint32_t sum) {
    return pack_sum(sum >> kFusedRowBits, sum & ((1u << kFusedRowBits) - 1));
  };
  uint32_t begins = 0;  // bit k: a voxel begins with point first + k
  uint32_t large = 0, sum = 0;
  uint64_t last_key = 0;  // of the last such voxel
  uint32_t last_count = 0;
#pragma unroll 1
  for (int i = first; i < last; ++i) {
    const uint32_t slot = partition.voxel[i];
    if (slot == kNone32) continue;
    uint64_t key;
    const VoxelTable::Entry entry = work.table.entry(slot, &key);
    if (entry.first == partition.begin + i) {
      begins |= 1u << (i - first);
      last_key = key;
      last_count = entry.count + 1;
      sum += sum_of(last_count);
      large += last_count > kSmallSegment;
    } else {
      partition.voxel[i] = entry.first;
    }
  }
  uint32_t block_sum;
  const uint32_t prefix = block_prefix(sum, shared.scan.sums, &block_sum);
  const uint64_t total = wide(block_sum);
  if (threadIdx.x == 0) store_relaxed(&work.status[blockIdx.x], total);
  const auto places = LargePlaces::reserve(work.counters, large);
  const TileSums blocks = sum_of_tiles(work.status, static_cast<int>(blockIdx.x),
                                       static_cast<int>(gridDim.x), shared.scan);
  uint64_t before = blocks.before + wide(prefix);
  uint32_t large_at = places.first();
  const uint32_t first_id = sum_voxels(blocks.before);
  if (threadIdx.x == 0) {
    shared.first_id = first_id;
    shared.voxels = sum_voxels(total);
    shared.all_voxels = blocks.all_voxels;
    if (blockIdx.x == gridDim.x - 1) store_relaxed(&work.totals->voxels, shared.all_voxels);
  }

#pragma unroll 1
  for (int i = first; i < last; ++i) {
    if (args.points.offsets.given()) partition.voxels_before[i] = sum_voxels(before);
    if (!(begins >> (i - first) & 1)) continue;
    const uint32_t slot = partition.voxel[i];
    uint64_t key = last_key;
    uint32_t count = last_count;
    if (begins >> (i - first) != 1) count = work.table.entry(slot, &key).count + 1;
    const uint32_t id = sum_voxels(before);
    const bool is_large = count > kSmallSegment;
    const uint32_t place = is_large ? sum_points(before) : kNone32;
    store_relaxed(&work.numbers[partition.begin + i], uint64_t{place} << 32 | id);
    if (is_large) add_voxel(args, work, id, {key, place, count}, &large_at);
    store_whole(&partition.local[id - first_id], VoxelSegment{key, is_large ? place : slot, count});
    partition.voxel[i] = static_cast<uint32_t>(partition.begin + i);
    before += wide(sum_of(count));
  }
}

// Each block writes the number of voxels before every sample whose first row is in its partition;
// then one block writes the samples' rows.
__device__ void number_samples(const VoxelizeArgs& args, const VoxelWork& work,
                               const BlockPartition& partition, FusedShared& shared) {
  const CloudBatch& points = args.points;
  __syncthreads();
  if (points.offsets.given()) {
#pragma unroll 1
    for (int64_t b = threadIdx.x; b <= points.clouds; b += blockDim.x) {
      const int64_t offset = points.offset(b);
      if (offset >= partition.begin && offset < partition.end) {
        work.sample_begin[b] = partition.voxels_before[offset - partition.begin];
      }
    }
    if (!is_last_block(&work.counters->scan_done, gridDim.x)) return;
  } else if (blockIdx.x != gridDim.x - 1) {
    return;
  }
  write_samples(args, work, shared.scan);
}

// Writes the row of every point and its place in a large segment, which follow from its voxel's id.
// Waits for the id where another block has not written it yet.
__device__ void finish_partition(const VoxelizeArgs& args, const VoxelWork& work,
                                 const BlockPartition& partition, FusedShared& shared) {
#pragma unroll 1
  for (int first = 0; first < partition.count; first += blockDim.x) {
    const int i = first + threadIdx.x;
    const uint32_t voxel = i < partition.count ? partition.voxel[i] : kNone32;
    uint32_t id = kNone32, arrival = 0;
    if (voxel != kNone32) {
      uint64_t number;
      do {
        number = load_relaxed(&work.numbers[voxel]);
      } while (number == kNone64);
      id = static_cast<uint32_t>(number);
      arrival = partition.arrival[i];
      const uint32_t place = static_cast<uint32_t>(number >> 32);
      if (place != kNone32) {
        work.perm[int64_t{place} + arrival] = static_cast<uint32_t>(partition.begin + i);
      }
    }
    finish_point(args, work, partition.begin + i, partition.end, id, arrival, shared.tally);
  }
  shared.tally.flush(work);
}

// One block per partition of consecutive points, all of them resident at once: reads the points,
// inserts them into the table, numbers its voxels, writes the row of every point, then reduces the
// voxels that begin in the block. Last, blocks share the large voxels and the unused rows. Barriers
// over the grid separate the steps.
template <class Real, ReduceKind kKind, bool kCommon = false>
__global__ void __launch_bounds__(kFusedThreads, 1)
    fused_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  if (kCommon && kKind == ReduceKind::kSum) args.reduce = VoxelReduce::kMean;
  extern __shared__ __align__(16) char storage[];
  __shared__ FusedShared shared;
  const BlockPartition partition(args, work, storage);
  WarpShared<Real>* const warps = reinterpret_cast<WarpShared<Real>*>(partition.rest);
  WarpShared<Real>& warp = warps[threadIdx.x / 32];
  using Key = std::conditional_t<kCommon, uint32_t, uint64_t>;
  insert_partition<Real, Key>(args, work, partition, shared);
  work.barriers[0].arrive();
  work.barriers[0].wait();
  number_partition(args, work, partition, shared);
  number_samples(args, work, partition, shared);
  // With a cap, the rows of a sample depend on all samples before it.
  if (work.row_needs_key(args)) {
    work.barriers[1].arrive();
    work.barriers[1].wait();
  }
  finish_partition(args, work, partition, shared);
  work.barriers[2].arrive();
  if constexpr (kCommon) {
    reduce_local_quads<kKind>(args, work, partition, shared);
  } else {
    reduce_local<Real, kKind>(args, work, partition, shared, warp);
  }
  const bool one_sample = !args.points.offsets.given();
  if (one_sample) fill_unused_rows(args, args.kept(shared.all_voxels));
  work.barriers[2].wait();
  reduce_rest<Real, kKind>(args, work, 0, warps);
  if (!one_sample) fill_unused_rows(args, work.totals->rows);
}

struct FusedKernels {
  template <class Real, ReduceKind kKind, bool kCommon = false>
  static VoxelKernel of() {
    return fused_kernel<Real, kKind, kCommon>;
  }
};

constexpr int kNamedBytes = 12 * 1024;  // limit of the kernel's __shared__ variables
constexpr int kDefaultSharedBytes = 48 * 1024;  // that a kernel may have without an attribute

}  // namespace

FusedLaunch plan_fused(const VoxelizeArgs& args, const VoxelWork& work, const Target& target) {
  const int64_t rows = args.points.rows, forced = voxel_kernels_plan.value();
  const bool fuses = forced == kAutomatic ? rows <= kFusedRows : forced == 1;
  if (!fuses || !target.cooperative_launch || work.ranking != VoxelRanking::kById) return {};
  if (args.keys != nullptr) return {};
  const int64_t warp_bytes = args.points.dtype == DType::kDouble
      ? static_cast<int64_t>(sizeof(WarpShared<double>))
      : static_cast<int64_t>(sizeof(WarpShared<float>));
  FusedLaunch fused;
  fused.blocks = static_cast<int>(std::clamp<int64_t>(ceil_div<int64_t>(rows, kFusedBlockPoints), 1,
                                                      std::max(1, target.multiprocessors)));
  const int64_t partition = ceil_div<int64_t>(rows, fused.blocks);
  const int64_t partition_bytes =
      (partition * (args.points.offsets.given() ? 28 : 24) + 15) / 16 * 16;
  const int64_t room = target.shared_bytes - kNamedBytes - partition_bytes;
  fused.threads = 128;
  while (fused.threads < kFusedThreads && fused.threads < 2 * partition &&
         2 * fused.threads / 32 * warp_bytes <= room) {
    fused.threads *= 2;
  }
  const int64_t bytes = std::max({fused.threads / 32 * warp_bytes,
                                  static_cast<int64_t>(kSortChunk * sizeof(uint32_t)),
                                  static_cast<int64_t>(sizeof(BlockTable<uint64_t>))});
  if (rows >> kFusedRowBits || partition >> (32 - kFusedRowBits)) return {};
  if (bytes > room || partition > 32 * fused.threads) return {};
  fused.partition = static_cast<int>(partition);
  fused.per_thread = static_cast<int>(ceil_div<int64_t>(partition, fused.threads));
  fused.partition_bytes = static_cast<int>(partition_bytes);
  fused.shared_bytes = static_cast<int>(partition_bytes + bytes);
  return fused;
}

cudaError_t voxelize_fused(const VoxelizeArgs& args, const VoxelWork& work,
                           const CudaContext& context) {
  const VoxelKernel kernel = kernel_for<FusedKernels>(args, work);
  const FusedLaunch& fused = work.fused;
  if (fused.shared_bytes > kDefaultSharedBytes - kNamedBytes) {
    // The same limit in every call: it is an attribute of the function, and other threads set it
    // too.
    TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             context.target.shared_bytes - kNamedBytes));
  }
  void* parameters[] = {const_cast<VoxelizeArgs*>(&args), const_cast<VoxelWork*>(&work)};
  return cudaLaunchCooperativeKernel(kernel, fused.blocks, fused.threads, parameters,
                                     static_cast<size_t>(fused.shared_bytes), context.stream);
}

}  // namespace torchvox
