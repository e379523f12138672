// SPDX-License-Identifier: Apache-2.0
//
// Arguments that the voxel ops share, checked and turned into what kernels take.
#pragma once

#include "csrc/kernels/spatial/voxel_grid.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

// The grid of a voxel size and a range, both rounded to fp32 once.
inline VoxelGrid parse_voxel_grid(const char* op, c10::ArrayRef<double> voxel_size,
                                  c10::ArrayRef<double> range) {
  check_value(voxel_size.size() == 3, op, "voxel_size must be (x, y, z)", voxel_size);
  check_range(op, range);
  VoxelGrid grid;
  for (int axis = 0; axis < 3; ++axis) {
    grid.lo[axis] = static_cast<float>(range[axis]);
    grid.hi[axis] = static_cast<float>(range[axis + 3]);
    grid.size[axis] = static_cast<float>(voxel_size[axis]);
    check_value(std::isfinite(grid.size[axis]) && grid.size[axis] > 0, op,
                "voxel_size must be finite and above 0", voxel_size);
    const float cells = cells_on_axis(grid.lo[axis], grid.hi[axis], grid.size[axis]);
    check_value(cells >= 1, op, "point_cloud_range must hold at least one voxel on each axis",
                cells, " on axis ", "xyz"[axis]);
    check_value(
        cells <= static_cast<float>(kMaxCellsPerAxis), op,
        "an axis must have at most 2^24 = 16777216 voxels, which fp32 can name (take larger "
        "voxels or a smaller range)",
        cells, " on axis ", "xyz"[axis]);
    grid.cells[axis] = static_cast<int32_t>(cells);
  }
  return grid;
}

// Keys of all samples must fit a signed 64-bit integer.
inline void check_keys(const char* op, const VoxelGrid& grid, const c10::SymInt& batches) {
  const char* rule = "B * nx * ny * nz must be below 2^63";
  // Each axis is at most 2^24, so the product of two is exact and the third may overflow.
  const int64_t nx = grid.cells[0], ny = grid.cells[1], nz = grid.cells[2];
  const int64_t most = INT64_MAX / (nx * ny) / nz;
  check_below(batches - 1, most, op, rule, batches, " * ", nx, " * ", ny, " * ", nz);
}

inline VoxelReduce parse_reduce(const char* op, std::string_view reduce) {
  return parse_choice<VoxelReduce>(op, "reduce", reduce,
                                   {{"none", VoxelReduce::kNone},
                                    {"mean", VoxelReduce::kMean},
                                    {"max", VoxelReduce::kMax},
                                    {"min", VoxelReduce::kMin},
                                    {"sum", VoxelReduce::kSum}});
}

inline bool has_arg(VoxelReduce reduce) {
  return reduce == VoxelReduce::kMax || reduce == VoxelReduce::kMin;
}

}  // namespace torchvox
