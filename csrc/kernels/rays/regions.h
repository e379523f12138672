// SPDX-License-Identifier: Apache-2.0
//
// Entry of ray_regions: the regions that hold a visit, ascending. Rays enter them into a set; its
// keys are sorted; those that fit are written.
#pragma once

#include "csrc/kernels/rays/tally.h"

namespace torchvox {

inline constexpr int kRegionWalkShift = kUnitShift + kRegionShift;

struct RayRegionsArgs {
  MapRays rays;
  int64_t max_out = 0;
  int64_t* keys = nullptr;  // [max_out]
  int64_t* counts = nullptr;  // [kRayCounts]: rows kept, found, then rays left out
};

TORCHVOX_KERNEL(RayRegionsArgs);

// visit(key) of each region that holds a visit of the part, in order.
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

// The rows that are kept of those found; none where the set was too small to hold all.
TORCHVOX_HD int64_t regions_kept(const RayRegionsArgs& args, const RegionSet& set, int64_t* found) {
  if (*set.full || *found > set.limit()) {
    *found = set.limit();
    return 0;
  }
  return *found < args.max_out ? *found : args.max_out;
}

}  // namespace torchvox
