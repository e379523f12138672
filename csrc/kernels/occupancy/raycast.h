// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_raycast: each ray walks to the first voxel that stops it.
#pragma once

#include "csrc/kernels/core/map.h"
#include "csrc/kernels/occupancy/state.h"
#include "csrc/kernels/rays/input.h"

namespace torchvox {

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

}  // namespace torchvox
