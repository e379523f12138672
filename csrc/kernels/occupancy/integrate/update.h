// SPDX-License-Identifier: Apache-2.0
//
// `hit` and `finish` of occupancy_integrate_: counts change the log-odds of voxels.
#pragma once

#include "csrc/kernels/occupancy/integrate/integrate.h"

namespace torchvox {

// How many votes of a voxel are as good as any larger number in this call; the status that it
// leaves gives the same numbers.
struct Enough {
  int32_t hits, misses;
  int32_t counted_hits, counted;  // misses; all that hit_miss can hold where it is kept
  int32_t first_of_unobserved;
  int32_t saturated;  // log-odds that no miss changes

  explicit TORCHVOX_HD Enough(const OccupancyIntegrateArgs& args)
      : hits(static_cast<int32_t>(enough_hits(args.sensor, args.scan))),
        misses(static_cast<int32_t>(enough_misses(
            args.sensor, raised(args.state.status[kHighestClamp], args.sensor.clamp_max),
            args.scan))),
        counted_hits(args.state.hit_miss ? INT32_MAX : hits),
        counted(args.state.hit_miss ? INT32_MAX : misses),
        first_of_unobserved(
            args.state.hit_miss ? 0
                                : misses -
                    static_cast<int32_t>(enough_misses_of_unobserved(args.sensor, args.scan))),
        saturated(args.state.hit_miss ? INT32_MAX : args.sensor.clamp_min) {}

  // Where the count of a voxel's misses begins: so high that `counted` is enough, for those that
  // most voxels are.
  TORCHVOX_HD int32_t first_count(int16_t logodds) const {
    return logodds == kUnobserved ? first_of_unobserved : logodds == saturated ? counted : 0;
  }
};

TORCHVOX_HD bool is_excluded(const OccupancyIntegrateArgs& args, int16_t logodds) {
  const bool unobserved = logodds == kUnobserved;
  const bool occupied = is_occupied(logodds, args.threshold);
  return (args.has(kExcludeUnobserved) && unobserved) || (args.has(kExcludeOccupied) && occupied) ||
      (args.has(kExcludeFree) && !unobserved && !occupied) ||
      (args.has(kLockMin) && !unobserved && logodds <= args.sensor.clamp_min) ||
      (args.has(kLockMax) && logodds >= args.sensor.clamp_max);
}

// Whether nothing but the log-odds of any voxel with votes is asked for.
TORCHVOX_HD bool updates_are_plain(const OccupancyIntegrateArgs& args) {
  return !args.state.hit_miss && args.flags < kExcludeUnobserved;
}
// Updates the log-odds of one voxel by its votes; true if they changed.
TORCHVOX_HD bool update_voxel(const OccupancyIntegrateArgs& args, int64_t voxel, int16_t* logodds,
                              int32_t hits, int32_t misses, const Enough& enough) {
  const int16_t before = *logodds;
  if (!updates_are_plain(args)) {
    if (is_excluded(args, before)) return false;
    if (args.state.hit_miss) {
      int32_t* const both = &args.state.hit_miss[2 * voxel];
      both[0] = static_cast<int32_t>(lowered(int64_t{both[0]} + hits, INT32_MAX));
      both[1] = static_cast<int32_t>(lowered(int64_t{both[1]} + misses, INT32_MAX));
    }
  }
  *logodds =
      update_logodds(before, hits < enough.hits ? hits : enough.hits,
                     misses < enough.misses ? misses : enough.misses, args.sensor, args.scan);
  return *logodds != before;
}
template <class Count>
TORCHVOX_HD int32_t misses_of(Count count, int16_t before, const Enough& enough) {
  const auto counted = static_cast<uint32_t>(enough.counted);
  return static_cast<int32_t>(count < counted ? count : counted) - enough.first_count(before);
}

// The count of a voxel that `hit` has updated, in place of its misses.
template <class Count>
constexpr Count kDecided = static_cast<Count>(-1);

// Updates the voxel at a place of the table.
template <class Count>
TORCHVOX_HD bool update_hit_voxel(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                                  int64_t at, const Enough& enough) {
  const uint64_t place = work.hits.voxels[at];
  if (place == HitTable::kNone) return false;
  const auto row = static_cast<int64_t>(place / kRegionVoxels);
  const auto i = static_cast<int64_t>(place % kRegionVoxels), voxel = work.voxel_of(row, i);
  Count* const count = &work.counts_of<Count>(row)[i];
  int16_t logodds = work.is_new(row) ? kUnobserved : args.state.logodds[voxel];
  const auto hits = static_cast<int32_t>(lowered(work.hits.count_at(at), enough.counted_hits));
  const int32_t misses = misses_of(*count, logodds, enough);
  *count = kDecided<Count>;
  const bool changed = update_voxel(args, voxel, &logodds, hits, misses, enough);
  if (changed) args.state.logodds[voxel] = logodds;
  return changed;
}
// Updates one that no hit has.
template <class Count>
TORCHVOX_HD bool finish_voxel(const OccupancyIntegrateArgs& args, int64_t voxel, int16_t* logodds,
                              Count count, const Enough& enough) {
  if (count == kDecided<Count>) return false;
  const int32_t misses = misses_of(count, *logodds, enough);
  return misses != 0 && update_voxel(args, voxel, logodds, 0, misses, enough);
}

// What the same makes of a voxel of a new row, where updates are plain: without branches.
template <class Count>
TORCHVOX_HD int16_t finished_new_voxel(const OccupancyIntegrateArgs& args, Count count,
                                       const Enough& enough) {
  const int32_t misses = count == kDecided<Count> ? 0 : misses_of(count, kUnobserved, enough);
  return update_logodds(kUnobserved, 0, misses, args.sensor, args.scan);
}

}  // namespace torchvox
