// SPDX-License-Identifier: Apache-2.0
//
// `hit` and `finish` of occupancy_integrate_: update voxels by their counts and sums.
#pragma once

#include "csrc/kernels/occupancy/integrate/integrate.h"

namespace torchvox {

// The numbers of votes of a voxel beyond which more change nothing in this call. The status after
// the call gives the same numbers as before it.
struct Enough {
  int32_t hits, misses;
  int32_t counted_hits, counted;  // hits and misses to count: all if a layer stores them
  int32_t first_of_unobserved;
  int32_t saturated;  // log-odds that no miss changes

  explicit TORCHVOX_HD Enough(const OccupancyIntegrateArgs& args)
      : hits(static_cast<int32_t>(enough_hits(args.sensor, args.scan))),
        misses(static_cast<int32_t>(enough_misses(
            args.sensor, raised(args.state.status[kHighestClamp], args.sensor.clamp_max),
            args.scan))),
        counted_hits(args.counts_hits() ? INT32_MAX : hits),
        counted(args.counts_misses() ? INT32_MAX : misses),
        first_of_unobserved(
            args.counts_misses() ? 0
                                 : misses -
                    static_cast<int32_t>(enough_misses_of_unobserved(args.sensor, args.scan))),
        saturated(args.counts_misses() ? INT32_MAX : args.sensor.clamp_min) {}

  // Where the count of a voxel's misses starts. It is `counted` for saturated voxels, and for
  // unobserved ones so high that it reaches `counted` when they have enough: then rays do not add
  // to them, and most voxels are of these kinds.
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

// Whether every voxel with votes is updated, and no layer counts votes.
TORCHVOX_HD bool updates_are_plain(const OccupancyIntegrateArgs& args) {
  return !args.state.hit_miss && args.flags < kExcludeUnobserved;
}

// A voxel of a row of the call, and its votes.
struct VoxelVotes {
  int64_t row, i;  // voxel i of the row
  int32_t hits, misses;
  const SampleSums* sums;  // over its hits
};

// Updates the samples of a voxel. Returns the total log-odds of its misses (0 or less) if it has a
// distribution, else 1.
TORCHVOX_HD int32_t update_samples(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                                   const VoxelVotes& votes, int16_t before) {
  const Samples& samples = args.state.samples;
  const int64_t row = work.samples[votes.row].row, at = row * kRegionVoxels + votes.i;
  if (row < 0) return 1;
  const int32_t n = samples.count[at];
  const bool has_distribution = samples.cov && n >= args.ndt.least_samples;
  const SampleVotes vote = has_distribution ? work.votes_of(votes.row)[votes.i] : SampleVotes{};
  if (samples.passes) {
    const int64_t through = has_distribution ? int64_t{vote.through} : votes.misses;
    const bool ends = votes.hits > 0;
    samples.add_passes(at, ends ? votes.sums->passes[0] : 0,
                       (n > 0 ? through : 0) + (ends ? votes.sums->passes[1] : 0));
  }
  if (votes.hits > 0) {
    add_samples(samples, at, votes.sums->moments(votes.hits, args.dark, args.span),
                samples.cov && args.ndt.resets(before, n));
  }
  if (!has_distribution) return 1;
  const int64_t missed = -static_cast<int64_t>(vote.missed);
  return -static_cast<int32_t>(lowered((missed + 32) / 64, 1 << 16));
}

// Updates one voxel by its votes; true if its log-odds changed.
template <bool kSampled>
TORCHVOX_HD bool update_voxel(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                              const VoxelVotes& votes, int16_t* logodds, const Enough& enough) {
  const int16_t before = *logodds;
  if (!updates_are_plain(args)) {
    if (is_excluded(args, before)) return false;
    if (args.state.hit_miss) {
      int32_t* const both = &args.state.hit_miss[2 * work.voxel_of(votes.row, votes.i)];
      both[0] = static_cast<int32_t>(lowered(int64_t{both[0]} + votes.hits, INT32_MAX));
      both[1] = static_cast<int32_t>(lowered(int64_t{both[1]} + votes.misses, INT32_MAX));
    }
  }
  const int32_t hits = votes.hits < enough.hits ? votes.hits : enough.hits;
  int32_t misses = votes.misses < enough.misses ? votes.misses : enough.misses;
  Sensor sensor = args.sensor;
  if (kSampled) {
    const int32_t missed = update_samples(args, work, votes, before);
    if (missed <= 0) {
      sensor.miss = missed;
      misses = misses > 0;
    }
  }
  *logodds = update_logodds(before, hits, misses, sensor, args.scan);
  return *logodds != before;
}
template <class Count>
TORCHVOX_HD int32_t misses_of(Count count, int16_t before, const Enough& enough) {
  const auto counted = static_cast<uint32_t>(enough.counted);
  return static_cast<int32_t>(count < counted ? count : counted) - enough.first_count(before);
}

// In place of the count of a voxel that `hit` has updated.
template <class Count>
constexpr Count kDecided = static_cast<Count>(-1);

// Updates the voxel at a place of the table.
template <class Count, bool kSampled>
TORCHVOX_HD bool update_hit_voxel(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                                  int64_t at, const Enough& enough) {
  const uint64_t place = work.hits.voxels[at];
  if (place == HitTable::kNone) return false;
  VoxelVotes votes{static_cast<int64_t>(place / kRegionVoxels),
                   static_cast<int64_t>(place % kRegionVoxels), 0, 0,
                   kSampled ? &work.sums[at] : nullptr};
  const int64_t voxel = work.voxel_of(votes.row, votes.i);
  Count* const count = &work.counts_of<Count>(votes.row)[votes.i];
  int16_t logodds = work.is_new(votes.row) ? kUnobserved : args.state.logodds[voxel];
  votes.hits = static_cast<int32_t>(lowered(work.hits.count_at(at), enough.counted_hits));
  votes.misses = misses_of(*count, logodds, enough);
  *count = kDecided<Count>;
  const bool changed = update_voxel<kSampled>(args, work, votes, &logodds, enough);
  if (changed) args.state.logodds[voxel] = logodds;
  return changed;
}
// Updates voxel i of a row unless update_hit_voxel() has.
template <class Count, bool kSampled>
TORCHVOX_HD bool finish_voxel(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                              int64_t row, int64_t i, int16_t* logodds, Count count,
                              const Enough& enough) {
  if (count == kDecided<Count>) return false;
  const VoxelVotes votes{row, i, 0, misses_of(count, *logodds, enough), nullptr};
  return votes.misses != 0 && update_voxel<kSampled>(args, work, votes, logodds, enough);
}

// The same for a voxel of a new region if updates are plain, without branches.
template <class Count>
TORCHVOX_HD int16_t finished_new_voxel(const OccupancyIntegrateArgs& args, Count count,
                                       const Enough& enough) {
  const int32_t misses = count == kDecided<Count> ? 0 : misses_of(count, kUnobserved, enough);
  return update_logodds(kUnobserved, 0, misses, args.sensor, args.scan);
}

}  // namespace torchvox
