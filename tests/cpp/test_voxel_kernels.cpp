// SPDX-License-Identifier: Apache-2.0
//
// Points to voxels, and their gradients.
#include "csrc/kernels/voxel/voxelize/voxelize.h"
#include "tests/cpp/harness.h"

namespace {

KERNEL_CASE(voxelize, 0xa25509957793dd78, {"voxel_table", {0, 1, 2}}, {"voxel_ranking", {0, 1}},
            {"voxel_partitions", {1, 2, 5, 16}}, {"voxel_kernels", {0, 1}},
            {"voxel_common", {0, 1}}) {
  constexpr int64_t kRows = 6000, kColumns = 4;
  // The usual call, which has kernels of its own, and one that has not.
  for (const VoxelReduce reduce : {VoxelReduce::kMean, VoxelReduce::kMax}) {
    const bool usual = reduce == VoxelReduce::kMean;
    VoxelizeArgs args;
    args.reduce = reduce;
    args.points = packed(side, make_points(kRows, kColumns, 4.2f, 1), kColumns);
    for (int axis = 0; axis < 3; ++axis) {
      args.grid.lo[axis] = -4, args.grid.hi[axis] = 4;
      args.grid.size[axis] = 1, args.grid.cells[axis] = 8;
    }
    if (usual) args.max_points = 5, args.max_voxels = 300;
    if (!usual) args.order = VoxelOrder::kZyx;
    const int64_t capacity = args.capacity(), values = capacity * args.row_values();
    args.features = side.room<float>(values);
    args.indices = side.room<int32_t>(capacity * 4);
    args.num_points = side.room<int32_t>(capacity);
    args.point_voxel = side.room<int32_t>(kRows);
    args.counts = side.room<int32_t>(2 * kVoxelCounts);
    if (!usual) args.arg = side.room<int32_t>(capacity * kColumns);
    if (!usual) args.point_slot = side.room<int32_t>(kRows);
    side.run(args, /*filled=*/true);  // the fused kernel reads small segments 16 bytes at once
    if (usual) continue;

    VoxelizeBackwardArgs backward;
    backward.rows = kRows, backward.columns = kColumns, backward.capacity = capacity;
    backward.max_points = args.max_points, backward.reduce = reduce;
    backward.grad = side.put(Random(2).uniforms(values));
    backward.point_voxel = args.point_voxel, backward.point_slot = args.point_slot;
    backward.num_points = args.num_points, backward.arg = args.arg;
    backward.grad_input = side.room<float>(kRows * kColumns);
    side.run(backward);
  }
}

}  // namespace
