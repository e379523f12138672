// SPDX-License-Identifier: Apache-2.0
//
// Entry of ray_visibility: clears the volume, walks rays and marks the voxels that they pass as
// free, then marks those where they end as occupied. Marks are plain bytes; threads that write the
// same byte write the same value.
#pragma once

#include "csrc/kernels/rays/tally.h"
#include "csrc/kernels/spatial/voxel_grid.h"

namespace torchvox {

enum Visibility : uint8_t { kSeenNothing, kSeenFree, kSeenOccupied };
enum Reached : int8_t { kNoRay = -1, kEndReached, kStopped, kEndOutside };

// Columns of counts [clouds + 1, kVisibilityCounts]: row 0 is the whole call, row 1 + b sample b.
enum VisibilityCount {
  kVisibilityWalked,
  kVisibilityGiven,
  kVisibilityEnds,
  kVisibilityOutside,
  kVisibilityStopped,
  kVisibilitySkipped,
  kVisibilityTooLong,
  kVisibilityNotFinite,
  kVisibilityCounts
};

struct RayVisibilityArgs : RayInput {
  VoxelGrid grid;
  const uint8_t* blockers = nullptr;  // as visibility
  uint8_t* visibility = nullptr;  // [clouds, nz, ny, nx]
  int8_t* reached = nullptr;  // [rows]
  int64_t* end = nullptr;  // [rows], in the workspace: the occupied voxel of a ray, or -1
  int32_t* counts = nullptr;

  TORCHVOX_HD int64_t volume() const {
    return static_cast<int64_t>(grid.cells_per_sample()) * points.clouds;
  }
  TORCHVOX_HD int64_t index(int64_t sample, const int32_t voxel[3]) const {
    return static_cast<int64_t>(grid.key(sample, {voxel[0], voxel[1], voxel[2]}));
  }

  // The quotient of VoxelGrid::locate, in units.
  template <class Real>
  TORCHVOX_HD bool units_of(Real p, int axis, int64_t* units) const {
    constexpr Real kReach = Real(1 << 22);
    const Real q = (p - static_cast<Real>(grid.lo[axis])) / static_cast<Real>(grid.size[axis]);
    const bool near = q >= -kReach && q <= kReach;
    to_units(near ? q * static_cast<Real>(kUnits) : Real(0), int64_t{1} << 39, units);
    return near;
  }

  // Loads the ray of a row; returns its column besides kVisibilityGiven.
  template <class Real>
  TORCHVOX_HD VisibilityCount load_ray(int64_t row, int64_t sample, Ray* ray) const {
    double from[3];
    Real to[3];
    const RayStatus status = load(row, sample, from, to, &ray->flags);
    if (status == kRayFiltered) return kVisibilitySkipped;
    if (status == kRayNotFinite) return kVisibilityNotFinite;
    bool near = true;
    for (int axis = 0; axis < 3; ++axis) {
      near = units_of(from[axis], axis, &ray->line.from[axis]) && near;
      near = units_of(to[axis], axis, &ray->line.to[axis]) && near;
    }
    return near && is_short(ray->line) ? kVisibilityWalked : kVisibilityTooLong;
  }

  // Walks a ray; returns its column besides kVisibilityWalked. *occupied: the voxel to mark, if
  // any.
  TORCHVOX_HD VisibilityCount walk(const Ray& ray, int64_t sample, int64_t* occupied) const {
    VoxelBox box;
    for (int axis = 0; axis < 3; ++axis) {
      box.lower[axis] = 0;
      box.upper[axis] = grid.cells[axis];
    }
    const bool hits = !(ray.flags & kRayNoHit);
    const int64_t steps = ray.line.end().steps();
    const RayPart part = ray.line.clip(box);
    const bool ends = part.visits > 0 && part.last.steps() == steps;
    if (part.visits > 0 && !(ray.flags & kRayHitOnly)) {
      RayWalk<kUnitShift> walk(ray.line, part);
      int64_t visit = part.first.steps();
      for (;; ++visit) {
        if (visit == steps) break;
        const int64_t at = index(sample, walk.cell);
        if (visit > 0 && blockers && blockers[at]) {
          *occupied = hits ? at : -1;
          return kVisibilityStopped;
        }
        const bool passes = visit > 0 || !(ray.flags & kRaySecondary);
        if (passes && load_any(&visibility[at]) == kSeenNothing)
          store_relaxed(&visibility[at], uint8_t{kSeenFree});
        if (walk.left == 0) break;
        walk.step();
      }
    }
    if (!ends) return kVisibilityOutside;
    const int32_t last[3] = {ray.line.cell_at(part.last, 0), ray.line.cell_at(part.last, 1),
                             ray.line.cell_at(part.last, 2)};
    if (hits) *occupied = index(sample, last);
    return kVisibilityEnds;
  }
};

// The voxel in which each ray ends.
TORCHVOX_KERNEL_WITH_WORKSPACE(RayVisibilityArgs, args.points.rows * 8);

TORCHVOX_HD int8_t reached_of(VisibilityCount column) {
  if (column == kVisibilityEnds) return kEndReached;
  if (column == kVisibilityOutside) return kEndOutside;
  return column == kVisibilityStopped ? kStopped : kNoRay;
}

// Loads and walks one ray; returns its column, or kVisibilityCounts for padding.
template <class Real>
TORCHVOX_HD VisibilityCount see(const RayVisibilityArgs& args, int64_t row, int64_t sample) {
  VisibilityCount column = kVisibilityCounts;
  int64_t occupied = -1;
  if (sample >= 0) {
    Ray ray;
    column = args.template load_ray<Real>(row, sample, &ray);
    if (column == kVisibilityWalked) column = args.walk(ray, sample, &occupied);
  }
  args.reached[row] = reached_of(column);
  args.end[row] = occupied;
  return column;
}
TORCHVOX_HD bool is_walked(VisibilityCount column) {
  return column >= kVisibilityEnds && column <= kVisibilityStopped;
}

TORCHVOX_HD void mark_end(const RayVisibilityArgs& args, int64_t row) {
  if (args.end[row] >= 0) store_relaxed(&args.visibility[args.end[row]], uint8_t{kSeenOccupied});
}

}  // namespace torchvox
