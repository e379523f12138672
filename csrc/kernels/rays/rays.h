// SPDX-License-Identifier: Apache-2.0
//
// Entries of the operators on rays.
//
//   ray_regions     the regions that rays visit, ascending: rays enter them into a set, whose keys
//                   are sorted, and those that fit are written
//   ray_voxels      the visits of each ray, ray by ray: counts them, sums the counts, walks again
//                   and writes the visits that fit
//   ray_visibility  clears the volume, walks rays and marks the voxels that they pass as free, then
//                   marks those where they end as occupied. Marks are plain bytes; threads that
//                   write the same byte write the same value
#pragma once

#include "csrc/kernels/rays/input.h"
#include "csrc/kernels/spatial/voxel_grid.h"

namespace torchvox {

// Adds to one of several 64-bit counts that threads share.
TORCHVOX_HD void add_count(int64_t* count, int64_t n) {
  if (n != 0) atomic_add(reinterpret_cast<uint64_t*>(count), static_cast<uint64_t>(n));
}

#ifdef __CUDACC__
// Counts skipped rays, each in its column. Called by every thread of the block.
__device__ __forceinline__ void count_skipped(RayStatus status, int64_t* counts) {
  for (int column = kRayNotFinite; column <= kRayOutside; ++column) {
    const int n = __syncthreads_count(status == column);
    if (threadIdx.x == 0) add_count(&counts[column], n);
  }
}
#endif

// Counts the rays of one thread; added to the shared counts at the end of a task.
struct RayTally {
  int64_t rays[kRayOutside + 2] = {};  // by status + 1

  TORCHVOX_HD void add(RayStatus status) {
    // Without an index that depends on data, so that a GPU keeps the array in registers.
    for (int i = 0; i < kRayOutside + 2; ++i) rays[i] += i == status + 1;
  }
  TORCHVOX_HD int64_t of(int status) const { return rays[status + 1]; }
  TORCHVOX_HD int64_t given() const {
    return of(kRayWalked) + of(kRayNotFinite) + of(kRayFiltered) + of(kRayOutside);
  }
  void flush(int64_t* counts) const {
    for (int column = kRayNotFinite; column <= kRayOutside; ++column) {
      add_count(&counts[column], rays[column + 1]);
    }
  }
};

inline constexpr int kRegionWalkShift = kUnitShift + kRegionShift;

struct RayRegionsArgs {
  MapRays rays;
  int64_t max_out = 0;
  int64_t* keys = nullptr;  // [max_out]
  int64_t* counts = nullptr;  // [kRayCounts]: rows written, regions, then skipped rays by status
};

TORCHVOX_KERNEL(RayRegionsArgs);

// visit(key) for each region that a part of a ray visits, in order.
template <class Visit>
TORCHVOX_HD void for_each_region(const Ray& ray, const RayPart& part, const Visit& visit) {
  if (part.visits == 0) return;
  RayWalk<kRegionWalkShift> walk(ray.line, part);
  visit(region_key(walk.cell));
  while (walk.left > 0) {
    walk.step();
    visit(region_key(walk.cell));
  }
}

// The rows to write of the regions in the set; none if the set was too small to hold all.
TORCHVOX_HD int64_t regions_kept(const RayRegionsArgs& args, const RegionSet& set,
                                 int64_t* regions) {
  if (*set.full || *regions > set.limit()) {
    *regions = set.limit();
    return 0;
  }
  return *regions < args.max_out ? *regions : args.max_out;
}

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
