// SPDX-License-Identifier: Apache-2.0
//
// `touch` and `mark` of occupancy_integrate_: enters the regions that a ray visits into the set of
// the call, and marks those that may get samples.
#pragma once

#include "csrc/kernels/occupancy/integrate/integrate.h"

namespace torchvox {

// A ray that visits one region at a time. As for RayVotes, begin() starts a ray, visit() makes one
// visit, all except the last, and end() makes the last, so that lanes of a warp can take rays of
// different lengths.
struct RayTouch {
  const OccupancyIntegrateArgs& args;
  const IntegrateWork& work;

  TORCHVOX_HD RayTouch(const OccupancyIntegrateArgs& args_in, const IntegrateWork& work_in)
      : args(args_in), work(work_in) {}

  TORCHVOX_HD void begin(int64_t i, int j, int n) {
    const Ray& ray = work.rays[i].ray;
    const RayPart part = work.part_of(i, j, n);
    if (part.visits == 0) return;
    if (args.has(kStopAtOccupied)) return touch_until_stopped(ray, part);
    walk_ = RayWalk<kRegionWalkShift>(ray.line, part);
    has_region_ = true;
  }
  TORCHVOX_HD bool walks() const { return walk_.left > 0; }
  TORCHVOX_HD void visit() {
    work.set.insert(region_key(walk_.cell));
    walk_.step();
  }
  TORCHVOX_HD void end() {
    if (has_region_) work.set.insert(region_key(walk_.cell));
    has_region_ = false;
  }

 private:
  TORCHVOX_HD void touch_until_stopped(const Ray& ray, const RayPart& part) const {
    RayWalk<kUnitShift> walk(ray.line, part);
    for (int64_t region = -1, slot = -1;; walk.step()) {
      const int64_t key = region_key_of_voxel(walk.cell);
      if (key != region) {
        region = key;
        slot = args.state.find(key);
        work.set.insert(key);
      }
      if (walk.left == 0) return;
      if (slot < 0) continue;
      const int64_t voxel = slot * kRegionVoxels + voxel_in_region(walk.cell);
      if (is_occupied(args.state.logodds[voxel], args.threshold)) return;
    }
  }

  RayWalk<kRegionWalkShift> walk_;
  bool has_region_ = false;  // the current region is not entered yet
};

// Marks the region in which a ray ends if its flags let it hit there, even if it may be stopped
// before.
TORCHVOX_HD void mark_end(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                          int64_t i) {
  const auto& [ray, part] = work.rays[i];
  const RayPlace end = ray.line.end();
  if (*work.set.full) return;  // a search would take long
  if (!args.hits(ray, part)) return;
  int32_t voxel[3];
  for (int axis = 0; axis < 3; ++axis) voxel[axis] = ray.line.cell_at(end, axis);
  const int64_t at = work.set.find(region_key_of_voxel(voxel));
  if (at >= 0) store_relaxed(&work.ends[at], uint8_t{1});
}

}  // namespace torchvox
