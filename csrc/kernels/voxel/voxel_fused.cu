// SPDX-License-Identifier: Apache-2.0
//
// All steps in one cooperative launch, for clouds of which every block can keep its part in shared
// memory: what separate launches cost, and the trips of a point's slot and arrival through global
// memory, are most of the time of a single scan.
#include <cooperative_groups.h>

#include <cuda/atomic>

#include <algorithm>
#include <utility>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_number.cuh"
#include "csrc/kernels/voxel/voxel_points.cuh"
#include "csrc/kernels/voxel/voxel_reduce.cuh"
#include "csrc/kernels/voxel/voxel_sort.cuh"

namespace torchvox {
namespace {

namespace cg = cooperative_groups;

// A block's points and what it knows of them, in shared memory.
struct Chunk {
  int64_t begin;
  int64_t end;
  int count;
  int per_thread;
  uint32_t* voxel;  // [count] slot, then first point, then id of the point's voxel; kNone32: none
  uint32_t* arrival;  // [count]
  uint32_t* voxels_before;  // [count] winners before the point; given offsets only

  __device__ Chunk(const VoxelizeArgs& args, const VoxelWork& work, char* storage) {
    const int64_t rows = args.points.rows;
    begin = int64_t{blockIdx.x} * work.fused.chunk;
    if (begin > rows) begin = rows;
    end = rows - begin < work.fused.chunk ? rows : begin + work.fused.chunk;
    count = static_cast<int>(end - begin);
    per_thread = (count + blockDim.x - 1) / blockDim.x;
    voxel = reinterpret_cast<uint32_t*>(storage);
    arrival = voxel + work.fused.chunk;
    voxels_before = arrival + work.fused.chunk;
  }
};

struct FusedShared {
  BlockTally tally;
  ScanShared scan;
};

// Every block waits for all others. `counter` starts at minus one and serves once. A quarter faster
// than a barrier of cooperative groups, which can do without such a counter.
__device__ void grid_barrier(uint32_t* counter) {
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::atomic_ref<uint32_t, cuda::thread_scope_device> arrived(*counter);
    arrived.fetch_add(1, cuda::memory_order_release);
    while (arrived.load(cuda::memory_order_acquire) + 1 != gridDim.x) {
    }
  }
  __syncthreads();
}

__device__ void clear_workspace(const VoxelWork& work) {
  uint4* const quads = reinterpret_cast<uint4*>(work.table.data);
  const int64_t count = work.cleared_bytes / 16;
  for (int64_t k = global_thread(); k < count; k += global_stride()) {
    quads[k] = make_uint4(kNone32, kNone32, kNone32, kNone32);
  }
}

// One thread a point. The first points are read and located while the workspace is being cleared,
// later ones while earlier ones are inserted.
template <class Real>
__device__ void insert_chunk(const VoxelizeArgs& args, const VoxelWork& work, const Chunk& chunk,
                             FusedShared& shared) {
  BlockTally::begin(args.points, chunk.begin, chunk.end, shared.tally);
  const auto load = [&](int64_t i) {
    return load_point<Real>(args, work, chunk.begin + i, chunk.end, shared.tally.samples);
  };
  LoadedPoint<Real> next = load(threadIdx.x);
  clear_workspace(work);
  const cg::grid_group grid = cg::this_grid();
  auto cleared = grid.barrier_arrive();
  for (int first = 0; first < chunk.count || first == 0; first += blockDim.x) {
    const int i = first + threadIdx.x;
    int column;
    const uint64_t key = locate_point(args, next, &column);
    if (first == 0) grid.barrier_wait(std::move(cleared));
    shared.tally.add<kPointsOutOfRange, kPointsNotFinite>(work, next.sample, column);
    next = load(int64_t{i} + blockDim.x);
    uint32_t slot, arrival;
    insert_point(work, key, chunk.begin + i, &slot, &arrival);
    if (i < chunk.count) {
      chunk.voxel[i] = slot;
      chunk.arrival[i] = arrival;
    }
  }
}

__device__ void put_point(const VoxelWork& work, const Chunk& chunk, int i, uint32_t id,
                          uint32_t place) {
  work.perm[int64_t{place} + chunk.arrival[i]] = static_cast<uint32_t>(chunk.begin + i);
  chunk.voxel[i] = id;
}

// Ids in point order, a thread `per_thread` neighbouring points. Blocks publish how many voxels
// begin in them and add up all earlier blocks; a voxel that begins elsewhere is awaited.
__device__ void number_chunk(const VoxelizeArgs& args, const VoxelWork& work, const Chunk& chunk,
                             FusedShared& shared) {
  const int first = threadIdx.x * chunk.per_thread;
  const int last = min(first + chunk.per_thread, chunk.count);
  uint32_t winners = 0;  // bit k: point first + k is its voxel's first
  uint32_t crowded = 0;
  uint64_t sum = 0;
  uint64_t held_key = 0;  // of the last winner
  uint32_t held_count = 0;
  for (int i = first; i < last; ++i) {
    const uint32_t slot = chunk.voxel[i];
    if (slot == kNone32) continue;
    uint64_t key;
    const VoxelTable::Entry entry = work.table.entry(slot, &key);
    if (entry.first == chunk.begin + i) {
      winners |= 1u << (i - first);
      held_key = key;
      held_count = entry.count + 1;
      sum += pack_sum(1, held_count);
      crowded += held_count > kSmallVoxel;
    } else {
      chunk.voxel[i] = entry.first;
    }
  }
  uint64_t total;
  uint64_t before = block_prefix(sum, shared.scan, &total);
  if (threadIdx.x == 0) store_relaxed(&work.status[blockIdx.x], total);
  const auto places = CrowdedPlaces::reserve(work.counters, crowded);
  const uint64_t blocks_before = sum_of_tiles(work.status, blockIdx.x, shared.scan);
  before += blocks_before;
  uint32_t crowded_at = places.first();
  if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
    store_relaxed(&work.totals->voxels, sum_voxels(blocks_before + total));
  }

  for (int i = first; i < last; ++i) {
    if (args.points.offsets.given()) chunk.voxels_before[i] = sum_voxels(before);
    if (!(winners >> (i - first) & 1)) continue;
    uint64_t key = held_key;
    uint32_t count = held_count;
    if (winners >> (i - first) != 1) {  // not the last winner
      count = work.table.entry(chunk.voxel[i], &key).count + 1;
    }
    const uint32_t id = sum_voxels(before);
    const uint32_t place = sum_points(before);
    store_relaxed(&work.numbers[chunk.begin + i], uint64_t{place} << 32 | id);
    add_voxel(args, work, id, {key, place, count}, &crowded_at);
    put_point(work, chunk, i, id, place);
    before += pack_sum(1, count);
  }
  __syncwarp();
  for (int i = first; i < last; ++i) {
    if (winners >> (i - first) & 1 || chunk.voxel[i] == kNone32) continue;
    uint64_t number;
    do {
      number = load_relaxed(&work.numbers[chunk.voxel[i]]);
    } while (number == kNone64);
    put_point(work, chunk, i, static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32));
  }
}

// The voxels before each sample of which the first row lies in this block; then, by one block, what
// follows from them.
__device__ void number_samples(const VoxelizeArgs& args, const VoxelWork& work, const Chunk& chunk,
                               FusedShared& shared) {
  const PackedPoints& points = args.points;
  __syncthreads();
  if (points.offsets.given()) {
    for (int64_t b = threadIdx.x; b <= points.batches; b += blockDim.x) {
      const int64_t offset = points.offset(b);
      if (offset >= chunk.begin && offset < chunk.end) {
        work.sample_begin[b] = chunk.voxels_before[offset - chunk.begin];
      }
    }
    if (!is_last_block(&work.counters->scan_done, gridDim.x)) return;
  } else if (blockIdx.x != gridDim.x - 1) {
    return;
  }
  write_samples(args, work, shared.scan);
}

__device__ void finish_chunk(const VoxelizeArgs& args, const VoxelWork& work, const Chunk& chunk,
                             FusedShared& shared) {
  for (int first = 0; first < chunk.count; first += blockDim.x) {
    const int i = first + threadIdx.x;
    const bool in_chunk = i < chunk.count;
    finish_point(args, work, chunk.begin + i, chunk.end, in_chunk ? chunk.voxel[i] : kNone32,
                 in_chunk ? chunk.arrival[i] : 0, shared.tally);
  }
  shared.tally.flush(work);
}

template <class Real, ReduceKind kKind>
__global__ void __launch_bounds__(kFusedThreads, 1) fused_kernel(VoxelizeArgs args,
                                                                 VoxelWork work) {
  extern __shared__ __align__(16) char storage[];
  __shared__ FusedShared shared;
  uint32_t* const barriers = work.counters->barriers;
  const Chunk chunk(args, work, storage);
  insert_chunk<Real>(args, work, chunk, shared);
  grid_barrier(&barriers[0]);
  number_chunk(args, work, chunk, shared);
  number_samples(args, work, chunk, shared);
  // With a cap, the rows of a sample depend on all samples before it.
  if (args.max_voxels >= 0) grid_barrier(&barriers[1]);
  finish_chunk(args, work, chunk, shared);
  grid_barrier(&barriers[2]);
  if (blockIdx.x == gridDim.x - 1) write_counts(args, work);
  if (args.points.rows > work.sort_above && work.counters->sort_tasks != kNone32) {
    order_long_segments(args, work, reinterpret_cast<uint32_t*>(storage));
    cg::this_grid().sync();
  }
  reduce_all<Real, kKind>(args, work, reinterpret_cast<WarpShared<Real>*>(storage));
}

template <class Real>
const void* kernel_of(const VoxelizeArgs& args) {
  if (args.reduce == VoxelReduce::kNone) {
    return reinterpret_cast<const void*>(fused_kernel<Real, ReduceKind::kCopy>);
  }
  if (args.is_best()) {
    return reinterpret_cast<const void*>(fused_kernel<Real, ReduceKind::kBest>);
  }
  return reinterpret_cast<const void*>(fused_kernel<Real, ReduceKind::kSum>);
}

const void* kernel_for(const VoxelizeArgs& args) {
  if (args.features == nullptr) {
    return reinterpret_cast<const void*>(fused_kernel<float, ReduceKind::kNothing>);
  }
  return args.points.dtype == DType::kDouble ? kernel_of<double>(args) : kernel_of<float>(args);
}

}  // namespace

FusedLaunch plan_fused(const VoxelizeArgs& args, const VoxelWork& work, const Target& target) {
  const int64_t forced = plan_override(Plan::kVoxelKernels);
  const bool wanted = forced == kAutomatic ? args.points.rows <= kFusedRows : forced == 1;
  if (!wanted || !target.cooperative_launch || work.ranking != VoxelRanking::kById) return {};
  const int64_t rows = args.points.rows;
  const int64_t warp_bytes = args.points.dtype == DType::kDouble
      ? static_cast<int64_t>(sizeof(WarpShared<double>))
      : static_cast<int64_t>(sizeof(WarpShared<float>));
  FusedLaunch fused;
  fused.blocks = static_cast<int>(std::clamp<int64_t>(
      ceil_div<int64_t>(rows, kFusedBlockPoints), 1, std::max(1, target.multiprocessors)));
  const int64_t chunk = ceil_div<int64_t>(rows, fused.blocks);
  const int64_t room = target.shared_bytes - 20 * 1024;  // less what the kernel has by name
  fused.threads = 128;
  while (fused.threads < kFusedThreads && fused.threads < chunk &&
         2 * fused.threads / 32 * warp_bytes <= room) {
    fused.threads *= 2;
  }
  const int64_t chunk_bytes = chunk * (args.points.offsets.given() ? 12 : 8);
  const int64_t bytes = std::max({chunk_bytes, fused.threads / 32 * warp_bytes,
                                  static_cast<int64_t>(kSortChunk * sizeof(uint32_t))});
  if (bytes > room || chunk > 32 * fused.threads) return {};
  fused.chunk = static_cast<int>(chunk);
  fused.shared_bytes = static_cast<int>(bytes);
  return fused;
}

cudaError_t voxelize_fused(const VoxelizeArgs& args, const VoxelWork& work,
                           const CudaContext& context) {
  const void* const kernel = kernel_for(args);
  const FusedLaunch& fused = work.fused;
  TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           fused.shared_bytes));
  int per_multiprocessor = 0;
  TORCHVOX_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &per_multiprocessor, kernel, fused.threads, static_cast<size_t>(fused.shared_bytes)));
  if (int64_t{per_multiprocessor} * context.target.multiprocessors < fused.blocks) {
    return cudaErrorCooperativeLaunchTooLarge;
  }
  void* parameters[] = {const_cast<VoxelizeArgs*>(&args), const_cast<VoxelWork*>(&work)};
  return cudaLaunchCooperativeKernel(kernel, fused.blocks, fused.threads, parameters,
                                     static_cast<size_t>(fused.shared_bytes), context.stream);
}

}  // namespace torchvox
