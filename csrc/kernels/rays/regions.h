// SPDX-License-Identifier: Apache-2.0
//
// Entry of ray_regions: the regions that rays visit, ascending. Rays enter them into a set, its
// keys are sorted, and those that fit are written.
#pragma once

#include "csrc/kernels/rays/tally.h"

namespace torchvox {

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

}  // namespace torchvox
