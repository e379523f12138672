// SPDX-License-Identifier: Apache-2.0
//
// Entry of ray_voxels: the visits of each ray, ray by ray. Counts the visits of each ray, sums the
// counts, walks again and writes the visits that fit.
#pragma once

#include "csrc/kernels/rays/tally.h"

namespace torchvox {

struct RayVoxelsArgs {
  MapRays rays;
  bool reverse = false;  // rows of a ray from its end to its beginning
  int64_t max_out = 0;
  int32_t* indices = nullptr;  // [max_out, 4]
  int32_t* ray = nullptr;  // [max_out]
  double* span = nullptr;  // [max_out, 2]
  int64_t* offsets = nullptr;  // [rays + 1]
  int64_t* counts = nullptr;  // [kRayCounts]: rows written, visits, then skipped rays by status

  TORCHVOX_HD int64_t kept() const {
    const int64_t visits = offsets[rays.points.rows];
    return visits < max_out ? visits : max_out;
  }
};

TORCHVOX_KERNEL(RayVoxelsArgs);

// Writes a row of the outputs; `voxel` is null for an unused one.
TORCHVOX_HD void write_visit(const RayVoxelsArgs& args, int64_t row, int32_t ray,
                             const int32_t* voxel, double enter, double leave) {
  args.ray[row] = ray;
  args.span[2 * row] = enter;
  args.span[2 * row + 1] = leave;
  args.indices[4 * row] = voxel ? 0 : -1;
  for (int axis = 0; axis < 3; ++axis) args.indices[4 * row + 3 - axis] = voxel ? voxel[axis] : -1;
}

TORCHVOX_HD int64_t count_visits(const RayVoxelsArgs& args, int64_t i, RayStatus* status) {
  Ray ray;
  *status = args.rays.ray(i, &ray);
  return *status == kRayWalked ? args.rays.part(ray).visits : 0;
}

TORCHVOX_HD void write_visits(const RayVoxelsArgs& args, int64_t i) {
  const int64_t begin = args.offsets[i], visits = args.offsets[i + 1] - begin;
  if (visits == 0 || (!args.reverse && begin >= args.max_out)) return;
  Ray ray;
  args.rays.ray(i, &ray);
  const RayPart part = args.rays.part(ray);
  RayWalk<kUnitShift> walk(ray.line, part);
  RayPlace place = part.first;
  const int64_t all = ray.line.end().steps();
  double enter = ray.line.entered(place);
  for (int64_t visit = 0; visit < visits; ++visit) {
    const int32_t voxel[3] = {walk.cell[0], walk.cell[1], walk.cell[2]};
    double leave = 1;
    if (place.steps() < all) {
      // The next crossing, also that which leaves the part.
      const int axis = walk.step();
      leave = ray.line.fraction(axis, place.done[axis]);
      ++place.done[axis];
    }
    const int64_t row = begin + (args.reverse ? visits - 1 - visit : visit);
    if (row < args.max_out) {
      write_visit(args, row, static_cast<int32_t>(i), voxel, enter, leave);
    }
    enter = leave;
  }
}

}  // namespace torchvox
