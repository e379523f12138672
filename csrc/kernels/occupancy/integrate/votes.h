// SPDX-License-Identifier: Apache-2.0
//
// `walk`, `hit` and `finish` of occupancy_integrate_: rays vote for voxels, which are then updated
// by their counts and sums.
//
// Misses are counted in 32 bits, or in 16 if those suffice. The GPU adds to 16 bits as to a half: n
// of its smallest steps, n <= kMostOfHalf, have the bits of n and add up exactly. Beyond that a
// half only grows, until adding 32 of its smallest steps no longer changes it, below 2^13: no
// number of rays makes a count overflow into the next one.
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

// Adds a miss to a count that need not exceed `enough`. kShared: other threads add, too. `crowded`:
// other lanes of the warp are likely to add to the same count.
template <bool kShared, class Count>
TORCHVOX_HD void add_miss(Count* count, [[maybe_unused]] Count enough,
                          [[maybe_unused]] bool crowded = false) {
#ifdef __CUDA_ARCH__
  int n = 1;
  if (crowded) {
    const unsigned same = __match_any_sync(__activemask(), reinterpret_cast<uintptr_t>(count));
    if (static_cast<int>(threadIdx.x % 32) != __ffs(static_cast<int>(same)) - 1) return;
    n = __popc(same);
  }
  if constexpr (sizeof(Count) == 2) {
    const auto address = reinterpret_cast<uintptr_t>(count);
    asm volatile("red.relaxed.gpu.global.add.noftz.f16x2 [%0], %1;"
                 :
                 : "l"(address & ~uintptr_t{3}), "r"(n << address % 4 * 8)
                 : "memory");
  } else {
    atomic_add(count, static_cast<Count>(n));
  }
#else
  if constexpr (kShared) {
    if (load_relaxed(count) < enough) atomic_add(count, Count{1});
  } else {
    *count = static_cast<Count>(*count + (*count < enough));
  }
#endif
}

constexpr int kCrowdedVisits = 48;  // from the origin on
constexpr int kVisitsPerLookAtCount = 16;  // while the last count read needs more misses

// kPlain: rays only count misses at their visits, and everything else is compiled out.
enum class Visits { kPlain, kFlagged };
inline bool visits_are_plain(const OccupancyIntegrateArgs& args) {
  return !args.has(kStopAtOccupied) && !args.has(kExcludeRay) && !args.state.traversal;
}

// A ray that visits one voxel at a time: begin() starts a ray, visit() makes one visit, all except
// the last, and end() makes the last, so that lanes of a warp can take rays of different lengths.
template <bool kShared, class Count, Visits kVisits>
struct RayVotes {
  const OccupancyIntegrateArgs& args;
  const IntegrateWork& work;
  const RegionBox rows;
  const Count enough;  // misses

  TORCHVOX_HD RayVotes(const OccupancyIntegrateArgs& args_in, const IntegrateWork& work_in)
      : args(args_in),
        work(work_in),
        rows(work_in.rows_by_place()),
        enough(static_cast<Count>(Enough(args_in).counted)) {}

  // Begins piece j of n of ray i.
  TORCHVOX_HD void begin(int64_t i, int j, int n) {
    const Ray& ray = work.rays[i].ray;
    const RayPart part = work.part_of(i, j, n);
    if (part.visits == 0) return;
    walk_ = RayWalk<kUnitShift>(ray.line, part);
    ray_ = &work.rays[i];
    if (traverses()) {
      units_ = ray.line.units();
      enter_ = ray.line.entered(part.first);
    }
    ends_ = part.last.steps() == ray.line.end().steps();
    const bool at_origin = part.first.steps() == 0;
    crowded_until_ = at_origin ? walk_.left - kCrowdedVisits : walk_.left;
    adds_ = at_origin ? args.misses_first(ray) : passes();
    open_ = false;
    if (kVisits == Visits::kPlain && !adds_) {  // skips the voxel of the origin
      if (walk_.left == 0 && !ends_) ray_ = nullptr;
      if (walk_.left > 0) walk_.step();
    }
    place_ = ~rows.place_of_voxel(walk_.cell);  // not the place of its region
  }
  TORCHVOX_HD bool walks() const { return walk_.left > 0; }

  // The old count of the voxel is loaded before the step and tested after it.
  TORCHVOX_HD void visit() {
    const int32_t left = walk_.left, voxel = enter_voxel();
    Count* const count = counts_ + voxel;
    const bool adds = kVisits == Visits::kPlain || adds_;
    const bool looks = adds && (!open_ || left % kVisitsPerLookAtCount == 0);
    const Count old = looks ? load_any(count) : Count{0};
    const bool stops = stops_at(voxel);
    leave_voxel(voxel, adds, walk_.step());
    if (stops) {
      walk_.left = 0;
      ray_ = nullptr;
    }
    const bool crowded = left > crowded_until_;
    const bool takes = old < enough;  // true if it was not loaded
    if (adds && takes) add_miss<kShared>(count, enough, crowded);
    if (looks) open_ = takes && !crowded;
    adds_ = passes();
  }

  // Makes the last visit, if the lane has a ray.
  TORCHVOX_HD void end() {
    if (!ray_) return;
    const Ray& ray = ray_->ray;
    const int32_t voxel = enter_voxel();
    Count* const count = counts_ + voxel;
    bool adds = kVisits == Visits::kPlain || adds_, hits = false;
    if (ends_) {
      adds = args.misses_end(ray);
      hits = args.hits(ray);
      if (hits && row_ < args.rows()) {
        work.hits.add(row_ * kRegionVoxels + voxel, Enough(args).counted_hits);
        if (args.state.touch && args.timestamps) touch(voxel);
      }
    }
    if (adds && load_any(count) < enough) add_miss<kShared>(count, enough);
    leave_voxel(voxel, adds || hits, ends_ || !traverses() ? -1 : walk_.step());
    ray_ = nullptr;
  }

 private:
  TORCHVOX_HD bool traverses() const {
    return kVisits == Visits::kFlagged && args.state.traversal != nullptr;
  }
  // Adds the length in the voxel that the ray leaves, by a crossing of `axis` or, if -1, at its
  // end.
  TORCHVOX_HD void leave_voxel(int32_t voxel, bool votes, int axis) {
    if (!traverses()) return;
    const RayLine& line = ray_->ray.line;
    const double leave = axis < 0 ? 1. : line.fraction(axis, line.done(axis, walk_.cell[axis]) - 1);
    const int64_t at = slot_ * kRegionVoxels + voxel;
    if (votes && slot_ >= 0 && !is_excluded(args, args.state.logodds[at])) {
      const auto units = static_cast<uint64_t>((leave - enter_) * units_);
      atomic_add(reinterpret_cast<uint64_t*>(&args.state.traversal[at]), units);
    }
    enter_ = leave;
  }
  // Notes the time of the ray's hit.
  TORCHVOX_HD void touch(int32_t voxel) const {
    const int64_t at = work.voxel_of(row_, voxel);
    if (is_excluded(args, args.state.logodds[at])) return;
    const double ms = (args.timestamps[ray_ - work.rays] - args.time_base) * 1000;
    atomic_max(&args.state.touch[at],
               !(ms > 0)                     ? 0
                   : ms >= double{INT32_MAX} ? INT32_MAX
                                             : static_cast<int32_t>(ms));
  }
  TORCHVOX_HD bool passes() const { return kVisits == Visits::kPlain || args.misses_between(); }
  TORCHVOX_HD bool stops_at(int32_t voxel) const {
    return kVisits == Visits::kFlagged && args.has(kStopAtOccupied) && slot_ >= 0 &&
        is_occupied(args.state.logodds[slot_ * kRegionVoxels + voxel], args.threshold);
  }
  // Finds the row of the region of the current voxel; returns the voxel's number in the region.
  TORCHVOX_HD int32_t enter_voxel() {
    const uint32_t place = rows.place_of_voxel(walk_.cell);
    if (place != place_) {
      place_ = place;
      const uint32_t row = work.row_of(rows, place, walk_.cell);
      row_ = lowered(row, args.rows());  // kNoRow is higher
      counts_ = work.counts_of<Count>(row_);
      if (kVisits == Visits::kFlagged) slot_ = row == kNoRow ? -1 : int64_t{work.slot[row]};
    }
    return voxel_in_region(walk_.cell);
  }

  const IntegrateWork::ReadRay* ray_ = nullptr;
  double units_ = 0, enter_ = 0;  // its length, and the fraction of it where it entered the voxel
  RayWalk<kUnitShift> walk_;
  uint32_t place_ = 0;  // place of the region of counts_
  int64_t row_ = 0;
  Count* counts_ = nullptr;
  int64_t slot_ = -1;  // of the region
  int32_t crowded_until_ = 0;  // visits are crowded while more steps than this are left
  bool open_ = false;  // the last count read needed more misses
  bool adds_ = false, ends_ = false;
};

}  // namespace torchvox
