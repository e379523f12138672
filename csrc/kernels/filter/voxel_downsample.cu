// SPDX-License-Identifier: Apache-2.0
//
// voxel_downsample on the GPU. Its sums do not depend on order, so with the hash backend and rows
// in order of first points it needs only the first steps of voxelize:
//
//   insert  points by their cells into the table of voxels
//   number  voxels by their first points
//   place   points into the lists of their voxels, in any order
//   rows    writes all outputs except the means
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/filter/exact_sum.cuh"
#include "csrc/kernels/filter/voxel_downsample.h"
#include "csrc/kernels/filter/voxel_key.cuh"
#include "csrc/kernels/voxel/voxelize/points.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = kVoxelThreads;

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
