// SPDX-License-Identifier: Apache-2.0
//
// occupancy_integrate_ on the GPU: the steps of integrate.h, a kernel each, their launches of
// shapes alone. A block of `number` takes a tile of the set; blocks clear and finish rows. Lanes of
// `walk` take the next ray when theirs is done, and all of a warp make a visit at a time: rays of
// one warp differ in length and enter regions at different visits.
#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/occupancy/integrate.h"
#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {
namespace {

constexpr int kRayThreads = 128;
constexpr int64_t kFewRays = 1 << 15;  // or fewer walk in pieces, to fill the GPU
constexpr int kPieces = 16;
constexpr int kWalkBlocks = 8;  // of a multiprocessor, whose lanes take rays in turn
constexpr int kRefill = 8;  // lanes of a warp without a ray before they take new ones,
constexpr int kVisitsPerLook = 4;  // looked at after so many visits
constexpr int kThreadsPerRow = 128;
constexpr int kVoxelsEach = kRegionVoxels / kThreadsPerRow;  // of a row's thread
constexpr int kPositions = 8;  // of a thread of `number`
constexpr int kTile = kScanThreads * kPositions;

__device__ void add_in_block(int64_t value, int64_t* count) {
  __shared__ int64_t sums[32];
  int64_t total = 0;
  block_prefix(value, sums, &total);
  if (threadIdx.x == 0) add_count(count, total);
}

// This thread's values of a row, all loaded before one is looked at.
template <class T>
__device__ void load_each(const T* values, int64_t row, T (&out)[kVoxelsEach]) {
  for (int k = 0; k < kVoxelsEach; ++k) {
    out[k] = values[row * kRegionVoxels + k * kThreadsPerRow + threadIdx.x];
  }
}

__global__ void __launch_bounds__(kRayThreads)
    touch_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                 const __grid_constant__ IntegrateWork work) {
  const int64_t rays = args.rays.points.rows;
  for (int64_t first = int64_t{blockIdx.x} * kRayThreads; first < rays; first += global_stride()) {
    const int64_t i = first + threadIdx.x;
    TouchedRay ray;
    if (i < rays) ray = touch(args, work.set, i);
    count_left_out(ray.status, args.counts);
    add_in_block(ray.status == kRayWalked, &args.counts[kRayWalked]);
    add_in_block(ray.status != kRayPadding, &args.counts[kRaysGiven]);
    add_in_block(ray.truncated, &args.counts[kRaysTruncated]);
    add_in_block(ray.visits, &args.counts[kVisits]);
  }
}

__global__ void __launch_bounds__(kScanThreads)
    number_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                  const __grid_constant__ IntegrateWork work, uint64_t* tiles, uint32_t* ticket) {
  __shared__ ScanShared shared;
  __shared__ uint64_t sums[32];
  const int64_t tile = block_ticket(ticket);
  const int64_t first = tile * kTile + int64_t{threadIdx.x} * kPositions;
  int64_t slot[kPositions];
  uint64_t own = 0;
  uint32_t bounds[RegionBox::kWords] = {};
  for (int k = 0; k < kPositions; ++k) {
    slot[k] = -2;
    if (first + k >= work.set.size || work.set.keys[first + k] == RegionSet::kEmpty) continue;
    slot[k] = args.state.find(static_cast<int64_t>(work.set.keys[first + k]));
    own += pack_sum(1, slot[k] < 0);
    for (int word = 0; word < RegionBox::kWords; ++word) {
      const auto key = static_cast<int64_t>(work.set.keys[first + k]);
      bounds[word] = max(bounds[word], RegionBox::bound(key, word));
    }
  }
  for (int word = 0; word < RegionBox::kWords; ++word) {
    const uint32_t bound = warp_max(bounds[word]);
    if (threadIdx.x % 32 == 0) atomic_raise(&work.bounds[word], bound);
  }
  uint64_t all = 0;
  uint64_t before = block_prefix(own, sums, &all);
  const uint64_t earlier = tile_prefix(tiles, tile, all, shared);
  before += earlier;
  for (int k = 0; k < kPositions; ++k) {
    if (slot[k] == -2) continue;
    number_region(args, work, first + k, slot[k], sum_voxels(before), sum_points(before));
    before += pack_sum(1, slot[k] < 0);
  }
  if (tile == gridDim.x - 1 && threadIdx.x == 0) {
    plan_call(args, work, sum_voxels(earlier + all), sum_points(earlier + all));
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreadsPerRow)
    commit_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                  const __grid_constant__ IntegrateWork work) {
  const Enough enough(args);
  Word* const counts = static_cast<Word*>(work.counts);
  if (work.plan->goes >= 0 && blockIdx.x == 0) {
    for (int k = threadIdx.x; k < kRegionVoxels; k += kThreadsPerRow) {
      counts[args.rows() * kRegionVoxels + k] = static_cast<Word>(enough.counted);
    }
  }
  for (int64_t row = blockIdx.x; row < work.plan->goes; row += gridDim.x) {
    int16_t logodds[kVoxelsEach];
    load_each(args.state.logodds, work.slot[row], logodds);
    for (int k = 0; k < kVoxelsEach; ++k) {
      counts[row * kRegionVoxels + k * kThreadsPerRow + threadIdx.x] =
          static_cast<Word>(enough.first_count(args, logodds[k]));
    }
  }
  // Last: before the rows it makes the kernel take three times as long.
  for (int64_t row = global_thread(); row < work.plan->goes; row += global_stride()) {
    commit_region(args, work, row);
  }
}

template <class Word, Visits kVisits>
__global__ void __launch_bounds__(kRayThreads)
    walk_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                const __grid_constant__ IntegrateWork work, int pieces) {
  if (work.plan->goes < 0) return;
  const int64_t rays = args.rays.points.rows, tasks = rays * pieces;
  RayVotes<true, Word, kVisits> votes(args, work);
  for (bool more = true;;) {
    const unsigned idle = __ballot_sync(kFullWarp, !votes.walks);
    if (more && __popc(idle) >= kRefill) {
      uint64_t task = 0;
      if (threadIdx.x % 32 == 0) task = atomic_add(work.next, static_cast<uint64_t>(__popc(idle)));
      task = __shfl_sync(kFullWarp, task, 0);
      more = static_cast<int64_t>(task) + __popc(idle) < tasks;
      const int64_t own = task + __popc(idle & ((1u << threadIdx.x % 32) - 1));
      if (!votes.walks && own < tasks) {
        votes.begin(own % rays, static_cast<int>(own / rays), pieces);
      }
    } else if (idle == kFullWarp) {
      return;
    }
    for (int k = 0; k < kVisitsPerLook; ++k) {
      if (votes.walks) votes.visit();
      __syncwarp();
    }
  }
}

template <class Word>
__global__ void __launch_bounds__(kThreadsPerRow)
    finish_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                  const __grid_constant__ IntegrateWork work) {
  const Word* const counts = static_cast<const Word*>(work.counts);
  const Enough enough(args);
  int64_t updated = 0;
  for (int64_t row = blockIdx.x; row < work.plan->goes; row += gridDim.x) {
    const int64_t slot = work.slot[row];
    Word word[kVoxelsEach];
    int16_t logodds[kVoxelsEach];
    load_each(counts, row, word);
    load_each(args.state.logodds, slot, logodds);
    for (int k = 0; k < kVoxelsEach; ++k) {
      const int64_t voxel = slot * kRegionVoxels + k * kThreadsPerRow + threadIdx.x;
      updated += finish_voxel(args, voxel, logodds[k], word[k], enough);
    }
  }
  add_in_block(updated, &args.counts[kVoxelsUpdated]);
  if (global_thread() == 0) finish_status(args, work);
}

// What the GPU needs beside: the sum over tiles.
struct CudaIntegrateWork {
  IntegrateWork work;
  int64_t tile_count;
  uint64_t* tiles;
  uint32_t* ticket;  // begins at -1

  CudaIntegrateWork(const OccupancyIntegrateArgs& args, Workspace& workspace)
      : work(args, workspace), tile_count(ceil_div<int64_t>(work.set.size, kTile)) {
    tiles = workspace.take<uint64_t>(tile_count);
    ticket = workspace.take<uint32_t>(1);
  }
};

template <class Word>
cudaError_t integrate(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                      const CudaContext& context) {
  const int64_t rays = args.rays.points.rows;
  const auto launch_rows = [&](auto kernel) {
    const int64_t most = int64_t{16} * std::max(context.target.multiprocessors, 1);
    const int64_t blocks = std::max<int64_t>(std::min(args.rows(), most), 1);
    return launch_blocks(kernel, static_cast<unsigned>(blocks), kThreadsPerRow, context.stream,
                         args, work);
  };
  TORCHVOX_CUDA_CHECK(launch_rows(commit_kernel<Word>));
  const int pieces = !args.has(kStopAtOccupied) && rays <= kFewRays ? kPieces : 1;
  const int64_t most = int64_t{kWalkBlocks} * std::max(context.target.multiprocessors, 1);
  const int64_t blocks = std::min(ceil_div<int64_t>(rays * pieces, kRayThreads), most);
  if (blocks > 0) {
    const auto kernel = visits_are_plain(args) ? walk_kernel<Word, Visits::kPlain>
                                               : walk_kernel<Word, Visits::kFlagged>;
    TORCHVOX_CUDA_CHECK(launch_blocks(kernel, static_cast<unsigned>(blocks), kRayThreads,
                                      context.stream, args, work, pieces));
  }
  return launch_rows(finish_kernel<Word>);
}

}  // namespace

int64_t workspace_bytes_cuda(const OccupancyIntegrateArgs& args, const Target&) {
  return carved_bytes<CudaIntegrateWork>(args);
}

cudaError_t launch(const OccupancyIntegrateArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const CudaIntegrateWork cuda(args, workspace);
  const IntegrateWork& work = cuda.work;
  const cudaStream_t stream = context.stream;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, kIntegrateCounts * 8, stream));
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.set.keys, 0xff, work.set.size * 8, stream));
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.zeros, 0, 4 * IntegrateWork::kZeros, stream));
  if (args.skip_missing) {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.box, 0xff, work.set.size * 4, stream));
  }
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(cuda.tiles, 0xff, cuda.tile_count * 8, stream));
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(cuda.ticket, 0xff, 4, stream));
  TORCHVOX_CUDA_CHECK(
      launch_items(touch_kernel, args.rays.points.rows, kRayThreads, context, args, work));
  TORCHVOX_CUDA_CHECK(launch_blocks(number_kernel, grid_x(cuda.tile_count), kScanThreads, stream,
                                    args, work, cuda.tiles, cuda.ticket));
  return args.narrow() ? integrate<uint32_t>(args, work, context)
                       : integrate<uint64_t>(args, work, context);
}

}  // namespace torchvox
