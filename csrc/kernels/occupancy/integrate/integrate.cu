// SPDX-License-Identifier: Apache-2.0
//
// occupancy_integrate_ on the GPU: the steps of integrate.h, one kernel each, whose launches depend
// on shapes only. Lanes of `touch` and `walk` take the next ray when theirs ends, and all lanes of
// a warp make one visit at a time, since rays of a warp differ in length and enter regions at
// different visits.
#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/occupancy/integrate/touch.h"
#include "csrc/kernels/occupancy/integrate/votes.h"
#include "csrc/kernels/occupancy/integrate/weigh.h"
#include "csrc/kernels/spatial/scan.cuh"

namespace torchvox {
namespace {

constexpr int kRayThreads = 128;
constexpr int64_t kFewRays = 1 << 15;  // up to this many walk in pieces, to fill the GPU
constexpr int kPieces = 16;
constexpr int kWalkBlocks = 8;  // per multiprocessor
constexpr int kWeighBlocks = 6;
constexpr int kRefill = 8;  // lanes of a warp without a ray from which on they take new ones,
constexpr int kVisitsPerLook = 4;  // tested after this many visits
constexpr int kUpdateThreads = 128;
constexpr int kVoxelsEach = 16;  // neighbors per lane: whole sectors of memory
constexpr int kPositions = 8;  // of the set, per thread of `number`
constexpr int kTile = kScanThreads * kPositions;

// Adds the sum of the block's values to a count.
__device__ void add_in_block(int64_t value, int64_t* count) {
  __shared__ int64_t sums[32];
  int64_t total = 0;
  block_prefix(value, sums, &total);
  if (threadIdx.x == 0) add_count(count, total);
}

// The voxels of a lane, loaded and stored at once if they are aligned.
template <class T>
struct alignas(16) LaneVoxels {
  T of[kVoxelsEach];
};
template <class T>
__device__ LaneVoxels<T>* aligned_voxels(T* first) {
  const bool aligned = reinterpret_cast<uintptr_t>(first) % alignof(LaneVoxels<T>) == 0;
  return aligned ? reinterpret_cast<LaneVoxels<T>*>(first) : nullptr;
}
// The log-odds of a lane's voxels of a row. Those of a new region are unobserved without loading
// them.
__device__ LaneVoxels<int16_t> load_logodds(const OccupancyIntegrateArgs& args, bool is_new,
                                            int64_t voxel) {
  int16_t* const first = &args.state.logodds[voxel];
  const auto* const at_once = aligned_voxels(first);
  if (!is_new && at_once) return *at_once;
  LaneVoxels<int16_t> voxels;
  for (int k = 0; k < kVoxelsEach; ++k) voxels.of[k] = is_new ? kUnobserved : first[k];
  return voxels;
}
// visit(row, first voxel) for the voxels of each lane; a warp takes one row.
template <class Visit>
__device__ void for_each_lane_of_rows(int64_t rows, const Visit& visit) {
  constexpr int kParts = kRegionVoxels / kVoxelsEach;
  for (int64_t i = global_thread(); i < rows * kParts; i += global_stride()) {
    visit(i / kParts, static_cast<int>(i % kParts) * kVoxelsEach);
  }
}

// One thread per ray: reads and clips it, writes it to the workspace, and counts it by status.
__global__ void __launch_bounds__(kRayThreads)
    read_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                const __grid_constant__ IntegrateWork work) {
  RayTally tally;
  int64_t visits = 0, truncated = 0;
  for (int64_t i = global_thread(); i < args.rays.points.rows; i += global_stride()) {
    tally.add(read_ray(args, work, i));
    visits += work.rays[i].part.visits;
    truncated += work.rays[i].ray.truncated;
  }
  const auto count = [&](int column, int64_t rays) { add_in_block(rays, &args.counts[column]); };
  for (int status = kRayNotFinite; status <= kRayOutside; ++status) {
    count(status, tally.of(status));
  }
  count(kRayWalked, tally.of(kRayWalked));
  count(kRaysGiven, tally.given());
  count(kRaysTruncated, truncated);
  count(kVisits, visits);
}

// Lanes take rays, or pieces of them, in turn; a warp makes one visit at a time.
template <class RayOnItsWay>
__device__ void walk_in_step(RayOnItsWay& ray, uint64_t* next, int64_t rays, int pieces) {
  const int64_t tasks = rays * pieces;
  for (bool more = true;;) {
    const unsigned idle = __ballot_sync(kFullWarp, !ray.walks());
    if (__popc(idle) >= kRefill) {
      if (!ray.walks()) ray.end();
      if (!more && idle == kFullWarp) return;
      uint64_t task = tasks;
      if (more && threadIdx.x % 32 == 0) {
        task = atomic_add(next, static_cast<uint64_t>(__popc(idle)));
      }
      task = __shfl_sync(kFullWarp, task, 0);
      more = static_cast<int64_t>(task) + __popc(idle) < tasks;
      const int64_t own = task + __popc(idle & ((1u << threadIdx.x % 32) - 1));
      if (!ray.walks() && own < tasks) {
        const int piece = pieces == 1 ? 0 : static_cast<int>(own / rays);
        ray.begin(own - piece * rays, piece, pieces);
      }
    }
    for (int k = 0; k < kVisitsPerLook; ++k) {
      if (ray.walks()) ray.visit();
      __syncwarp();
    }
  }
}

// One lane per ray or piece at a time: reads the ray, enters the regions that it visits into the
// set.
__global__ void __launch_bounds__(kRayThreads)
    touch_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                 const __grid_constant__ IntegrateWork work, int pieces) {
  if (args.state.status[kStateRefused] != 0) return;
  RayTouch ray(args, work);
  walk_in_step(ray, &work.zeros->next[0], args.rays.points.rows, pieces);
}

// One thread per ray: marks the region in which it ends.
__global__ void __launch_bounds__(kRayThreads)
    mark_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                const __grid_constant__ IntegrateWork work) {
  for (int64_t i = global_thread(); i < args.rays.points.rows; i += global_stride()) {
    mark_end(args, work, i);
  }
}

// One block per tile of the set, kPositions per thread: finds the slots of its regions in the
// state, waits for the numbers of earlier tiles, and writes row, slot and key of each; the last
// tile writes the plan. Warps also raise the bounds of the box of all regions.
__global__ void __launch_bounds__(kScanThreads)
    number_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                  const __grid_constant__ IntegrateWork work, uint64_t* tiles,
                  uint64_t* sample_tiles, uint32_t* ticket) {
  __shared__ ScanShared shared;
  __shared__ uint64_t sums[32];
  const int64_t tile = block_ticket(ticket);
  const int64_t first = tile * kTile + int64_t{threadIdx.x} * kPositions;
  int64_t slot[kPositions] = {}, samples[kPositions] = {};
  uint64_t own = 0, own_samples = 0;
  const auto number = [&](int k) { return pack_sum(1, slot[k] < 0); };
  const auto sample_number = [&](int k) {
    return pack_sum(samples[k] != SampleRow::kNone, samples[k] == SampleRow::kNew);
  };
  uint32_t bounds[RegionBox::kWords] = {};
  for (int k = 0; k < kPositions; ++k) {
    slot[k] = -2;
    if (first + k >= work.set.size || work.set.keys[first + k] == RegionSet::kEmpty) continue;
    slot[k] = args.state.find(static_cast<int64_t>(work.set.keys[first + k]));
    samples[k] = samples_before(args, work, first + k, slot[k]);
    own += number(k);
    own_samples += sample_number(k);
    for (int word = 0; word < RegionBox::kWords; ++word) {
      const auto key = static_cast<int64_t>(work.set.keys[first + k]);
      bounds[word] = max(bounds[word], RegionBox::bound(key, word));
    }
  }
  for (int word = 0; word < RegionBox::kWords; ++word) {
    const uint32_t bound = warp_max(bounds[word]);
    if (threadIdx.x % 32 == 0) atomic_raise(&work.zeros->bounds[word], bound);
  }
  // The sum over earlier tiles and threads; `all` is the sum up to the end of this tile.
  const auto sum_before = [&](uint64_t value, uint64_t* status, uint64_t* all) {
    const uint64_t in_tile = block_prefix(value, sums, all);
    const uint64_t earlier = tile_prefix(status, tile, *all, shared);
    *all += earlier;
    return in_tile + earlier;
  };
  const auto numbers = [](uint64_t sum, uint64_t sample_sum) {
    return RegionNumbers{sum_voxels(sum), sum_points(sum), sum_voxels(sample_sum),
                         sum_points(sample_sum)};
  };
  uint64_t all = 0, all_samples = 0, before_samples = 0;
  uint64_t before = sum_before(own, tiles, &all);
  if (args.samples()) before_samples = sum_before(own_samples, sample_tiles, &all_samples);
  for (int k = 0; k < kPositions; ++k) {
    if (slot[k] == -2) continue;
    number_region(args, work, first + k, slot[k], samples[k], numbers(before, before_samples));
    before += number(k);
    before_samples += sample_number(k);
  }
  if (tile == gridDim.x - 1 && threadIdx.x == 0) {
    plan_call(args, work, numbers(all, all_samples));
  }
}

// One lane per kVoxelsEach voxels of a row: reads their log-odds, writes where their counts start;
// then one thread per row enters its region into the map.
template <class Count>
__global__ void __launch_bounds__(kUpdateThreads)
    commit_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                  const __grid_constant__ IntegrateWork work) {
  if (work.plan->rows < 0) return;
  const Enough enough(args);
  for_each_lane_of_rows(work.plan->rows, [&](int64_t row, int voxel) {
    const auto logodds = load_logodds(args, work.is_new(row), work.voxel_of(row, voxel));
    LaneVoxels<Count> counts;
    for (int k = 0; k < kVoxelsEach; ++k) {
      counts.of[k] = static_cast<Count>(enough.first_count(logodds.of[k]));
    }
    *aligned_voxels(work.counts_of<Count>(row) + voxel) = counts;
    SampleVotes* const votes = args.samples() ? work.votes_of(row) : nullptr;
    for (int k = 0; votes && k < kVoxelsEach; ++k) votes[voxel + k] = {};
  });
  for (int64_t i = global_thread(); i < kRegionVoxels; i += global_stride()) {
    work.counts_of<Count>(args.rows())[i] = static_cast<Count>(enough.counted);
  }
  // Comes last, because before the rows it makes the kernel take three times as long.
  for (int64_t row = global_thread(); row < work.plan->rows; row += global_stride()) {
    commit_region(args, work, row);
  }
}

// One lane per ray or piece at a time: adds misses to the counts of the voxels that it visits, and
// a hit to the table.
template <class Count, Visits kVisits>
__global__ void __launch_bounds__(kRayThreads, kWalkBlocks)
    walk_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                const __grid_constant__ IntegrateWork work, int pieces) {
  if (work.plan->rows < 0) return;
  RayVotes<true, Count, kVisits> votes(args, work);
  walk_in_step(votes, &work.zeros->next[1], args.rays.points.rows, pieces);
}

// One lane per ray or piece at a time: reads the distributions of the voxels that it visits, adds
// weighted misses and the samples of its end.
__global__ void __launch_bounds__(kRayThreads, kWeighBlocks)
    weigh_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                 const __grid_constant__ IntegrateWork work, int pieces) {
  if (work.plan->rows < 0) return;
  RayWeights weights(args, work);
  walk_in_step(weights, &work.zeros->next[2], args.rays.points.rows, pieces);
}

// One thread per place of the table of hits: reads the votes of its voxel, updates the voxel in the
// state.
template <class Count, bool kSampled>
__global__ void __launch_bounds__(kUpdateThreads)
    hit_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
               const __grid_constant__ IntegrateWork work) {
  if (work.plan->rows < 0) return;
  const Enough enough(args);
  int64_t updated = 0;
  for (int64_t at = global_thread(); at < work.hits.size; at += global_stride()) {
    updated += update_hit_voxel<Count, kSampled>(args, work, at, enough);
  }
  add_in_block(updated, &args.counts[kVoxelsUpdated]);
}

// One lane per kVoxelsEach voxels of a row: reads their misses and log-odds, updates those that
// have no hit; the first thread updates the status.
template <class Count, bool kSampled>
__global__ void __launch_bounds__(kUpdateThreads)
    finish_kernel(const __grid_constant__ OccupancyIntegrateArgs args,
                  const __grid_constant__ IntegrateWork work) {
  const Enough enough(args);
  const bool plain = updates_are_plain(args);
  int64_t updated = 0;
  for_each_lane_of_rows(work.plan->rows, [&](int64_t row, int voxel) {
    const int64_t first = work.voxel_of(row, voxel);
    const auto counts = *aligned_voxels(work.counts_of<Count>(row) + voxel);
    const bool is_new = work.is_new(row);
    auto logodds = load_logodds(args, is_new, first);
    int changed = 0;
    bool decided = false;
    for (int k = 0; k < kVoxelsEach; ++k) decided = decided || counts.of[k] == kDecided<Count>;
    if (is_new && plain) {
      for (int k = 0; k < kVoxelsEach; ++k) {
        logodds.of[k] = finished_new_voxel(args, counts.of[k], enough);
        changed += logodds.of[k] != kUnobserved;
      }
    } else {
      for (int k = 0; k < kVoxelsEach; ++k) {
        changed += finish_voxel<Count, kSampled>(args, work, row, voxel + k, &logodds.of[k],
                                                 counts.of[k], enough);
      }
    }
    updated += changed;
    if (changed == 0) return;
    auto* const at_once = aligned_voxels(&args.state.logodds[first]);
    if (at_once && !decided) {
      *at_once = logodds;
      return;
    }
    for (int k = 0; k < kVoxelsEach; ++k) {
      if (counts.of[k] != kDecided<Count>) args.state.logodds[first + k] = logodds.of[k];
    }
  });
  add_in_block(updated, &args.counts[kVoxelsUpdated]);
  if (global_thread() == 0) finish_status(args, work);
}

// The workspace on the GPU, with the state of the sum over tiles. Everything up to the end of the
// hits starts at -1, and so does the box if regions may be skipped.
struct CudaIntegrateWork {
  int64_t tile_count;
  uint64_t *tiles, *sample_tiles;
  uint32_t* ticket;
  IntegrateWork work;

  CudaIntegrateWork(const OccupancyIntegrateArgs& args, Workspace& workspace)
      : tile_count(ceil_div<int64_t>(RegionSet::size_for(args.max_touched), kTile)),
        tiles(workspace.take<uint64_t>(tile_count)),
        sample_tiles(workspace.take<uint64_t>(args.samples() ? tile_count : 0)),
        ticket(workspace.take<uint32_t>(1)),
        work(args, workspace) {}
};

template <class Kernel>
cudaError_t launch_walk(Kernel kernel, const OccupancyIntegrateArgs& args,
                        const IntegrateWork& work, const CudaContext& context) {
  const int64_t rays = args.rays.points.rows;
  const int pieces = !args.has(kStopAtOccupied) && rays <= kFewRays ? kPieces : 1;
  const unsigned blocks = blocks_for(rays * pieces, kRayThreads, context.target);
  return launch_blocks(kernel, blocks, kRayThreads, context.stream, args, work, pieces);
}

template <class Count, bool kSampled>
cudaError_t integrate(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                      const CudaContext& context) {
  const int64_t row_threads = std::max<int64_t>(args.rows(), 1) * kRegionVoxels / kVoxelsEach;
  TORCHVOX_CUDA_CHECK(
      launch_items(commit_kernel<Count>, row_threads, kUpdateThreads, context, args, work));
  const auto walk = visits_are_plain(args) ? walk_kernel<Count, Visits::kPlain>
                                           : walk_kernel<Count, Visits::kFlagged>;
  TORCHVOX_CUDA_CHECK(launch_walk(walk, args, work, context));
  if (kSampled) TORCHVOX_CUDA_CHECK(launch_walk(weigh_kernel, args, work, context));
  TORCHVOX_CUDA_CHECK(launch_items(hit_kernel<Count, kSampled>, work.hits.size, kUpdateThreads,
                                   context, args, work));
  return launch_items(finish_kernel<Count, kSampled>, row_threads, kUpdateThreads, context, args,
                      work);
}

}  // namespace

int64_t workspace_bytes_cuda(const OccupancyIntegrateArgs& args, const Target&) {
  return carved_bytes<CudaIntegrateWork>(args);
}

cudaError_t launch(const OccupancyIntegrateArgs& args, void* memory, const CudaContext& context) {
  const auto cuda = carve<CudaIntegrateWork>(memory, args);
  const IntegrateWork& work = cuda.work;
  const cudaStream_t stream = context.stream;
  const void* const end = args.skip_missing ? static_cast<void*>(work.box + work.set.size)
                                            : static_cast<void*>(work.hits.hits + work.hits.size);
  const int64_t bytes = static_cast<const char*>(end) - static_cast<char*>(memory);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(memory, 0xff, bytes, stream));
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, kIntegrateCounts * 8, stream));
  const char* const zeros_end = args.samples() ? reinterpret_cast<char*>(work.sums + work.hits.size)
                                               : reinterpret_cast<char*>(work.zeros + 1);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(
      work.zeros, 0, static_cast<size_t>(zeros_end - reinterpret_cast<char*>(work.zeros)), stream));
  const unsigned blocks = blocks_for(args.rays.points.rows, kRayThreads, context.target, 4);
  TORCHVOX_CUDA_CHECK(launch_blocks(read_kernel, blocks, kRayThreads, stream, args, work));
  TORCHVOX_CUDA_CHECK(launch_walk(touch_kernel, args, work, context));
  if (args.samples()) {
    TORCHVOX_CUDA_CHECK(launch_blocks(mark_kernel, blocks, kRayThreads, stream, args, work));
  }
  TORCHVOX_CUDA_CHECK(launch_blocks(number_kernel, grid_x(cuda.tile_count), kScanThreads, stream,
                                    args, work, cuda.tiles, cuda.sample_tiles, cuda.ticket));
  return args.samples()      ? integrate<uint32_t, true>(args, work, context)
      : args.counts_little() ? integrate<uint16_t, false>(args, work, context)
                             : integrate<uint32_t, false>(args, work, context);
}

}  // namespace torchvox
