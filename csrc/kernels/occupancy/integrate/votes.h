// SPDX-License-Identifier: Apache-2.0
//
// `walk` of occupancy_integrate_: the votes of rays for voxels.
//
// Misses are counted in 32 bits, or in 16 if those suffice. The GPU adds to 16 bits as to a half: n
// of its smallest steps, n <= kMostOfHalf, have the bits of n and add up exactly. Beyond that a
// half only grows, until adding 32 of its smallest steps no longer changes it, below 2^13: no
// number of rays makes a count overflow into the next one.
#pragma once

#include "csrc/kernels/occupancy/integrate/update.h"

namespace torchvox {

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
