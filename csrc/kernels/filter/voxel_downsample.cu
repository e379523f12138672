// SPDX-License-Identifier: Apache-2.0
//
// voxel_keys and voxel_downsample on the GPU. Sums do not depend on order, so with the hash backend
// and rows in order of first points the latter needs only the first steps of voxelize:
//
//   insert  points by their cells into the table of voxels
//   number  voxels by their first points
//   place   points into the lists of their voxels, in any order
//   rows    writes all outputs except the means
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/filter/voxel_downsample.h"
#include "csrc/kernels/voxel/voxelize/points.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = kVoxelThreads;

// Lives in shared memory; every thread of the block calls each function. The counts of the whole
// call are added up per block, those of a sample per warp, before they are added to the output.
struct KeyTally {
  int32_t sums[kKeyCounts];

  __device__ void begin() {
    if (threadIdx.x < kKeyCounts) sums[threadIdx.x] = 0;
    __syncthreads();
  }
  // The key of a row, kNoVoxelKey past the last one.
  template <class T, class Real>
  __device__ int64_t locate(const VoxelKeysArgs& args, int64_t row) {
    const CloudBatch& points = args.points;
    const int64_t sample = row < points.rows ? points.packed_owner(row) : -1;
    int64_t key = kNoVoxelKey;
    KeyCount column = kKeyCounts;
    if (sample >= 0) key = args.template locate_row<T, Real>(row, sample, &column);
    for (int c = 0; c < kKeyCounts; ++c) {
      const unsigned votes = __ballot_sync(kFullWarp, column == c);
      if (threadIdx.x % 32 == 0 && votes) atomicAdd(&sums[c], __popc(votes));
    }
    if (points.clouds > 1) {
      const int64_t place = sample < 0 ? -1 : (sample + 1) * args.counts_stride + column;
      const unsigned same = __match_any_sync(kFullWarp, static_cast<long long>(place));
      if (place >= 0 && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(same)) - 1) {
        atomicAdd(&args.counts[place], __popc(same));
      }
    }
    return key;
  }
  __device__ void flush(const VoxelKeysArgs& args) const {
    __syncthreads();
    if (threadIdx.x >= kKeyCounts || sums[threadIdx.x] == 0) return;
    atomicAdd(&args.counts[threadIdx.x], sums[threadIdx.x]);
    if (args.points.clouds == 1) {
      atomicAdd(&args.counts[args.counts_stride + threadIdx.x], sums[threadIdx.x]);
    }
  }
};

// One thread per row: reads a point, writes its key; the block adds its counts at the end.
template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(const __grid_constant__ VoxelKeysArgs args) {
  __shared__ KeyTally tally;
  tally.begin();
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < args.points.rows;
       first += global_stride()) {
    const int64_t row = first + threadIdx.x;
    const int64_t key = tally.locate<T, Real>(args, row);
    if (row < args.points.rows) args.keys[row] = key;
  }
  tally.flush(args);
}

// voxel_keys; the counts must be cleared.
cudaError_t make_keys(const VoxelKeysArgs& args, const CudaContext& context) {
  return with_key_types(args, [&](auto type, auto real) {
    return launch_items(keys_kernel<decltype(type), decltype(real)>, args.points.rows, kThreads,
                        context, args);
  });
}

bool lists_unordered(const VoxelDownsampleArgs& args) {
  return !args.by_key && args.backend != GroupBackend::kSort;
}

VoxelizeArgs list_args(const DownsampleSteps& steps) {
  VoxelizeArgs voxelize;
  voxelize.points.packed = true;
  voxelize.points.rows = steps.group.points;
  voxelize.key_bits = steps.group.key_bits;
  voxelize.point_voxel = steps.args.point_voxel;
  voxelize.first_point = steps.args.representative;
  return voxelize;
}

// One thread per point: reads it, computes its key, enters it into the table of voxels, and counts
// it.
template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    insert_kernel(const __grid_constant__ VoxelKeysArgs args,
                  const __grid_constant__ VoxelWork work) {
  __shared__ KeyTally tally;
  tally.begin();
  const int64_t row = global_thread();
  const uint64_t key = static_cast<uint64_t>(tally.locate<T, Real>(args, row));
  const MatchingLanes matching = MatchingLanes::of(key);
  wait_for_previous();
  insert_row(work, key, matching, row, args.points.rows);
  let_next_begin();
  tally.flush(args);
}

// One thread per row: reads the segment of its voxel, writes cell, number of points and offset, and
// counts rows per sample.
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const __grid_constant__ DownsampleSteps steps, const VoxelSegment* segments,
                const VoxelTotals* totals) {
  const VoxelDownsampleArgs& args = steps.args;
  wait_for_previous();
  const int64_t voxels = totals->voxels;
  const uint32_t points = static_cast<uint32_t>(args.counts[kKeyCountsFrom + kPointsKeyed]);
  for (int64_t i = global_thread(); i <= steps.group.points; i += global_stride()) {
    const VoxelSegment row =
        i < voxels ? load_whole(&segments[i]) : VoxelSegment{kNone64, points, 0};
    const uint64_t before = i > 0 && i <= voxels ? segments[i - 1].key : kNone64;
    args.write_row(i, static_cast<int64_t>(row.key), static_cast<int64_t>(before), row.count);
    steps.group.offsets[i] = static_cast<int32_t>(row.place);
    if (i >= voxels && i < steps.group.points) args.representative[i] = -1;
  }
  let_next_begin();
}

// Workspace of the grouping.
int64_t group_bytes(const DownsampleSteps& steps, const Target& target) {
  return lists_unordered(steps.args) ? VoxelWork(list_args(steps), target, nullptr).bytes
                                     : workspace_bytes_cuda(steps.group, target);
}

}  // namespace

cudaError_t launch(const VoxelKeysArgs& args, void*, const CudaContext& context) {
  const int64_t counts = (args.points.clouds + 1) * kKeyCounts;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, counts * sizeof(int32_t), context.stream));
  return make_keys(args, context);
}

int64_t workspace_bytes_cuda(const VoxelDownsampleArgs& args, const Target& target) {
  Workspace workspace;
  const DownsampleSteps steps(args, workspace);
  return workspace.bytes() + workspace_bytes_cuda(steps.mean, target) + group_bytes(steps, target);
}

cudaError_t launch(const VoxelDownsampleArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  DownsampleSteps steps(args, workspace);
  char* const sums = static_cast<char*>(memory) + workspace.bytes();
  char* const rest = sums + workspace_bytes_cuda(steps.mean, context.target);
  const int64_t points = args.points();
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(
      args.counts, 0, static_cast<size_t>(args.num_counts()) * sizeof(int32_t), context.stream));
  if (points == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(clear_sums(steps.mean, sums, context));
  if (lists_unordered(args)) {
    const VoxelizeArgs voxelize = list_args(steps);
    const VoxelWork work(voxelize, context.target, rest);
    TORCHVOX_CUDA_CHECK(clear_voxels(work, context));
    TORCHVOX_CUDA_CHECK(with_key_types(args.keys, [&](auto type, auto real) {
      return launch_after(insert_kernel<decltype(type), decltype(real)>,
                          static_cast<unsigned>(ceil_div<int64_t>(points, kThreads)), kThreads,
                          context, steps.keys, work);
    }));
    TORCHVOX_CUDA_CHECK(number_voxels(voxelize, work, context));
    TORCHVOX_CUDA_CHECK(place_points(voxelize, work, context));
    TORCHVOX_CUDA_CHECK(launch_items_after(rows_kernel, points + 1, kThreads, context, steps,
                                           work.segments, work.totals));
    steps.mean.perm = reinterpret_cast<const int32_t*>(work.perm);
  } else {
    TORCHVOX_CUDA_CHECK(make_keys(steps.keys, context));
    TORCHVOX_CUDA_CHECK(launch(steps.group, rest, context));
    TORCHVOX_CUDA_CHECK(launch_elements<write_grouped_row>(steps, points + 1, context));
  }
  return add_sums(steps.mean, sums, context);
}

}  // namespace torchvox
