// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_query and occupancy_crop: log-odds and labels at points and at the cells of a
// grid.
#pragma once

#include "csrc/kernels/core/map.h"
#include "csrc/kernels/occupancy/state.h"
#include "csrc/kernels/rays/input.h"
#include "csrc/kernels/rays/transform_points.h"
#include "csrc/kernels/spatial/voxel_grid.h"

namespace torchvox {

// A map and the outputs of a lookup in it.
struct OccupancyLookup {
  OccupancyState state;
  MapRays frame;  // has the size and origin of the map's voxels
  double threshold = 0;
  float fill = 0;  // written as the log-odds of unobserved voxels
  float* logodds = nullptr;
  int8_t* label = nullptr;

  // Log-odds of the voxel around a point in meters; kUnobserved beyond all voxels.
  TORCHVOX_HD int16_t at(const double p[3]) const {
    int32_t voxel[3];
    for (int axis = 0; axis < 3; ++axis) {
      int64_t units;
      if (!is_finite(p[axis]) || !frame.units_of(p[axis], axis, &units)) return kUnobserved;
      voxel[axis] = static_cast<int32_t>(units >> kUnitShift);
    }
    return state.at(voxel);
  }
  TORCHVOX_HD void write(int64_t i, int16_t found) const {
    logodds[i] = found == kUnobserved ? fill : static_cast<float>(found) / 1024;
    label[i] = label_of(found, threshold);
  }
};

struct OccupancyQueryArgs : OccupancyLookup {
  CloudBatch points;  // packed, one cloud
};

struct OccupancyCropArgs : OccupancyLookup {
  VoxelGrid grid;
  const void* poses = nullptr;  // [crops, 3, 4], contiguous; null: the grid is the map's
  DType pose_type = DType::kDouble;
  int64_t crops = 1;

  TORCHVOX_HD int64_t cells() const {
    return static_cast<int64_t>(grid.cells_per_sample()) * crops;
  }
};

TORCHVOX_HD void query_point(const OccupancyQueryArgs& args, int64_t i) {
  double p[3];
  for (int axis = 0; axis < 3; ++axis) {
    p[axis] =
        load_as<double>(args.points.data, args.points.dtype, i * args.points.row_stride + axis);
  }
  args.write(i, args.points.packed_owner(i) < 0 ? kUnobserved : args.at(p));
}
TORCHVOX_MAP(OccupancyQueryArgs, query_point, args.points.rows, 1024, 256);

TORCHVOX_HD void query_cell(const OccupancyCropArgs& args, int64_t i) {
  int64_t crop;
  const Cell cell = args.grid.cell_of(static_cast<uint64_t>(i), &crop);
  const double center[3] = {args.grid.center<double>(0, cell.x),
                            args.grid.center<double>(1, cell.y),
                            args.grid.center<double>(2, cell.z)};
  double p[3];
  for (int axis = 0; axis < 3; ++axis) {
    p[axis] = center[axis];
    if (!args.poses) continue;
    double row[4];
    for (int k = 0; k < 4; ++k) {
      row[k] = load_as<double>(args.poses, args.pose_type, crop * 12 + axis * 4 + k);
    }
    p[axis] = transform(row, center);
  }
  args.write(i, args.at(p));
}
TORCHVOX_MAP(OccupancyCropArgs, query_cell, args.cells(), 1024, 256);

}  // namespace torchvox
