// SPDX-License-Identifier: Apache-2.0
//
// Entries of the operators that read a map: occupancy_query and occupancy_crop look up log-odds and
// labels at points and at the cells of a grid; in occupancy_raycast each ray walks to the first
// voxel that stops it; occupancy_extract sorts the regions in use by key, counts their selected
// voxels, sums the counts, and writes the voxels that fit.
#pragma once

#include "csrc/kernels/core/entry.h"
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

enum RaycastStatus : int8_t { kLineOfSight, kMeetsOccupied, kMeetsUnknown, kNoRaycast };

struct OccupancyRaycastArgs {
  OccupancyState state;
  MapRays rays;
  double threshold = 0;
  double solid_angle = 1;  // of each ray, in steradians
  bool stop_unknown = false;
  float* distance = nullptr;  // [rows], meters
  float* unseen = nullptr;  // [rows], cubic meters of unobserved space in the ray's cone
  int8_t* status = nullptr;  // [rows]: RaycastStatus
  int32_t* indices = nullptr;  // [rows, 4]: 0, z, y, x of the last voxel
  int32_t* unknown = nullptr;  // [rows]: unobserved voxels on the way
};

TORCHVOX_HD void cast_ray(const OccupancyRaycastArgs& args, int64_t i) {
  Ray ray;
  RaycastStatus status = kNoRaycast;
  float distance = bit_cast<float>(0x7fc00000u);
  double unseen = 0;
  int32_t voxel[3] = {-1, -1, -1}, unknown = 0;
  const bool walked = args.rays.ray(i, &ray) == kRayWalked;
  if (walked) {
    const double voxels = ray.line.units() / static_cast<double>(kUnits);  // exact
    const double length = voxels * args.rays.voxel_size;
    RayWalk<kUnitShift> walk(ray.line, ray.line.whole());
    RayPlace place = ray.line.start();
    int crossed = -1;  // axis of the last crossing
    // Where on the line, in [0, 1], the current voxel begins: a division, made only if needed.
    const auto enter = [&] {
      return crossed < 0 ? 0. : ray.line.fraction(crossed, place.done[crossed] - 1);
    };
    int64_t region = -1, slot = -1;
    for (;;) {
      const int64_t key = region_key_of_voxel(walk.cell);
      if (key != region) slot = args.state.find(key);
      region = key;
      const int16_t logodds = slot < 0
          ? kUnobserved
          : args.state.logodds[slot * kRegionVoxels + voxel_in_region(walk.cell)];
      for (int axis = 0; axis < 3; ++axis) voxel[axis] = walk.cell[axis];
      status = is_occupied(logodds, args.threshold)     ? kMeetsOccupied
          : args.stop_unknown && logodds == kUnobserved ? kMeetsUnknown
                                                        : kLineOfSight;
      if (status != kLineOfSight) {
        distance = static_cast<float>(enter() * length);
        break;
      }
      const bool ends = walk.left == 0;
      const double near = logodds == kUnobserved ? enter() * length : 0;
      if (!ends) {
        crossed = walk.step();
        ++place.done[crossed];
      }
      if (logodds == kUnobserved) {
        const double far = (ends ? 1. : enter()) * length;
        unseen = unseen + (far * far * far - near * near * near);
        ++unknown;
      }
      if (ends) {
        distance = static_cast<float>(length);
        break;
      }
    }
  }
  args.distance[i] = distance;
  args.unseen[i] = static_cast<float>(args.solid_angle / 3 * unseen);
  args.status[i] = status;
  args.indices[4 * i] = walked ? 0 : -1;
  for (int axis = 0; axis < 3; ++axis) args.indices[4 * i + 3 - axis] = voxel[axis];
  args.unknown[i] = unknown;
}
TORCHVOX_MAP(OccupancyRaycastArgs, cast_ray, args.rays.points.rows, 256, 128);

enum class OccupancySelect { kOccupied, kFree, kObserved };

struct OccupancyExtractArgs {
  OccupancyState state;
  int64_t max_out = 0;
  OccupancySelect select = OccupancySelect::kOccupied;
  double threshold = 0;
  float* logodds = nullptr;  // [max_out]
  float* mean = nullptr;  // [max_out, 3]: mean of the samples in voxels, from the center
  int32_t* indices = nullptr;  // [max_out, 4]
  int32_t* num_samples = nullptr;  // [max_out]
  int64_t* counts = nullptr;  // [kStateCounts]: rows written, voxels selected

  TORCHVOX_HD bool selects(int16_t voxel_logodds) const {
    const int8_t label = label_of(voxel_logodds, threshold);
    if (select == OccupancySelect::kOccupied) return label == 1;
    return select == OccupancySelect::kFree ? label == 0 : label >= 0;
  }
  TORCHVOX_HD void write(int64_t row, int64_t slot, int32_t voxel, int16_t voxel_logodds) const {
    const int64_t samples = state.samples_of(slot), at = samples * kRegionVoxels + voxel;
    const bool sampled = samples >= 0 && state.samples.count[at] > 0;
    logodds[row] = static_cast<float>(voxel_logodds) / kLogOddsUnit;
    num_samples[row] = sampled ? state.samples.count[at] : 0;
    indices[4 * row] = 0;
    for (int axis = 0; axis < 3; ++axis) {
      mean[3 * row + axis] = sampled ? state.samples.mean[3 * at + axis] : 0;
      indices[4 * row + 3 - axis] = voxel_of(state.region_key[slot], voxel, axis);
    }
  }
  TORCHVOX_HD void write_unused(int64_t row) const {
    logodds[row] = 0;
    num_samples[row] = 0;
    for (int column = 0; column < 3; ++column) mean[3 * row + column] = 0;
    for (int column = 0; column < 4; ++column) indices[4 * row + column] = -1;
  }
};

TORCHVOX_KERNEL(OccupancyExtractArgs);

}  // namespace torchvox
