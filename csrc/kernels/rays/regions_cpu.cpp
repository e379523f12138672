// SPDX-License-Identifier: Apache-2.0
//
// ray_regions on the CPU: tasks of rays fill one set.
#include <algorithm>

#include "csrc/kernels/rays/regions.h"

namespace torchvox {

namespace {

RegionSet take_set(const RayRegionsArgs& args, Workspace& workspace) {
  RegionSet set;
  set.size = RegionSet::size_for(args.max_out);
  set.keys = workspace.take<uint64_t>(set.size);
  set.full = workspace.take<uint32_t>(1);
  return set;
}

}  // namespace

int64_t workspace_bytes_cpu(const RayRegionsArgs& args) {
  Workspace workspace;
  take_set(args, workspace);
  return workspace.bytes();
}

void run_cpu(const RayRegionsArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const RegionSet set = take_set(args, workspace);
  std::fill_n(set.keys, set.size, RegionSet::kEmpty);
  *set.full = 0;
  std::fill_n(args.counts, kRayCounts, 0);
  for_each_range(parallel_for, args.rays.points.rows, 256, [&](int64_t begin, int64_t end) {
    RayTally tally;
    for (int64_t i = begin; i < end; ++i) {
      Ray ray;
      const RayStatus status = args.rays.ray(i, &ray);
      tally.add(status);
      if (status != kRayWalked) continue;
      for_each_region(ray, args.rays.part(ray), [&](int64_t key) { set.insert(key); });
    }
    tally.flush(args.counts);
  });
  uint64_t* const keys_end = std::remove(set.keys, set.keys + set.size, RegionSet::kEmpty);
  int64_t regions = keys_end - set.keys;
  const int64_t kept = regions_kept(args, set, &regions);
  if (kept > 0) std::sort(set.keys, keys_end);
  std::copy_n(set.keys, kept, args.keys);
  std::fill(args.keys + kept, args.keys + args.max_out, -1);
  args.counts[0] = kept;
  args.counts[1] = regions;
}

}  // namespace torchvox
