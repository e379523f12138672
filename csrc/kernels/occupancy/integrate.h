// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_integrate_. Order never matters: a call counts hits and misses of each voxel
// in integers and then updates each voxel once.
//
//   touch   rays enter the regions that they visit into the call's set
//   number  a row for each region, a slot for each new one, in the order of the set; does all fit?
//   commit  new regions into the map; rows of counts cleared
//   walk    rays add to the counts
//   finish  counts change the log-odds
//
// A call that does not fit writes nothing but the refusal; all steps after `number` then do
// nothing.
#pragma once

#include "csrc/kernels/occupancy/state.h"
#include "csrc/kernels/rays/regions.h"

namespace torchvox {

enum IntegrateFlag : uint32_t {
  kEndAsFree = 1,
  kStopAtOccupied = 2,
  kExcludeOrigin = 4,
  kExcludeSample = 8,
  kExcludeRay = 16,
  kExcludeUnobserved = 32,
  kExcludeFree = 64,
  kExcludeOccupied = 128,
  kLockMin = 256,
  kLockMax = 512
};

// Columns of `counts`; 0 to 4 as RayStatus has them.
enum IntegrateCount {
  kRaysTruncated = 5,
  kVisits,
  kVoxelsUpdated,
  kRegionsTouched,
  kNewRegions,
  kRegionsInUse,
  kOverflowBits,
  kRegionsSkipped,
  kIntegrateCounts = 16
};
// Beside kTooManyRegions.
enum OverflowBit { kTooManyTouched = 1, kRefusedBefore = 8 };

struct OccupancyIntegrateArgs {
  MapRays rays;
  OccupancyState state;
  Sensor sensor;
  int64_t max_touched = 0;
  bool limited = false;  // max_touched was given
  bool scan = false;
  bool skip_missing = false;
  uint32_t flags = 0;  // of IntegrateFlag
  double threshold = 0;
  const int32_t* stamp = nullptr;  // [1]
  int threads = 1;  // of the CPU
  int64_t* counts = nullptr;  // [kIntegrateCounts]

  TORCHVOX_HD bool has(uint32_t flag) const { return (flags & flag) != 0; }
  TORCHVOX_HD int64_t rows() const {
    return max_touched < state.capacity ? max_touched : state.capacity;
  }
  // Counts of a voxel in 32 bits where 20 hold the misses of all rays and 12 all hits that matter.
  bool narrow() const {
    return !state.hit_miss && rays.points.rows < int64_t{1} << 20 &&
        enough_hits(sensor, scan) < 1 << 12;
  }
};

TORCHVOX_KERNEL(OccupancyIntegrateArgs);

// Misses in the lower bits, hits above them.
template <class Word>
struct Counts {
  static constexpr int kMissBits = sizeof(Word) == 4 ? 20 : 32;
  static TORCHVOX_HD int64_t misses(Word word) {
    return static_cast<int64_t>(word & ((Word{1} << kMissBits) - 1));
  }
  static TORCHVOX_HD int64_t hits(Word word) { return static_cast<int64_t>(word >> kMissBits); }
};

constexpr uint32_t kNoRow = 0xffffffff;

// What the steps share, in the workspace.
struct IntegrateWork {
  RegionSet set;
  uint32_t* row = nullptr;  // [set.size] of a region, kNoRow where it is skipped
  uint32_t* slot = nullptr;  // [rows]
  int64_t* key = nullptr;  // [rows]
  void* counts = nullptr;  // [rows, kRegionVoxels] words
  struct Plan {
    int64_t goes;  // rows to walk, -1 if the call is refused
    int64_t first_new;  // slots in use before
    int64_t in_use;  // and after
  }* plan = nullptr;

  IntegrateWork(const OccupancyIntegrateArgs& args, Workspace& workspace) {
    set.size = RegionSet::size_for(args.max_touched);
    set.keys = workspace.take<uint64_t>(set.size);
    set.full = workspace.take<uint32_t>(1);
    row = workspace.take<uint32_t>(set.size);
    slot = workspace.take<uint32_t>(args.rows());
    key = workspace.take<int64_t>(args.rows());
    counts = workspace.take<char>(args.rows() * kRegionVoxels * (args.narrow() ? 4 : 8));
    plan = workspace.take<Plan>(1);
  }
};

// ---- touch --------------------------------------------------------------------------------------

// The regions of the visits that count, which with kStopAtOccupied end where the ray is stopped.
template <class Visit>
TORCHVOX_HD void for_each_touched(const OccupancyIntegrateArgs& args, const Ray& ray,
                                  const RayPart& part, const Visit& visit) {
  if (!args.has(kStopAtOccupied)) return for_each_region(ray, part, visit);
  if (part.visits == 0) return;
  RayWalk<kUnitShift> walk(ray.line, part);
  for (int64_t region = -1, slot = -1;; walk.step()) {
    const int64_t key = region_key_of_voxel(walk.cell);
    if (key != region) {
      region = key;
      slot = args.state.find(key);
      visit(key);
    }
    if (walk.left == 0) return;
    if (slot < 0) continue;
    const int64_t voxel = slot * kRegionVoxels + voxel_in_region(walk.cell);
    if (is_occupied(args.state.logodds[voxel], args.threshold)) return;
  }
}

struct TouchedRay {
  RayStatus status = kRayPadding;
  int64_t visits = 0;
  bool truncated = false;
};
TORCHVOX_HD TouchedRay touch(const OccupancyIntegrateArgs& args, const RegionSet& set, int64_t i) {
  Ray ray;
  TouchedRay touched;
  touched.status = args.rays.ray(i, &ray);
  if (touched.status != kRayWalked || args.state.status[kStateRefused] != 0) return touched;
  const RayPart part = args.rays.part(ray);
  touched.visits = part.visits;
  touched.truncated = ray.truncated;
  for_each_touched(args, ray, part, [&](int64_t key) { set.insert(key); });
  return touched;
}

// ---- number -------------------------------------------------------------------------------------

// Gives the region at a position of the set its row and slot, from the numbers of regions and of
// new ones at earlier positions.
TORCHVOX_HD void number_region(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                               int64_t at, int64_t slot, int64_t before, int64_t new_before) {
  const int64_t row = args.skip_missing ? before - new_before : before;
  const bool takes_row = (slot >= 0 || !args.skip_missing) && row < args.rows();
  work.row[at] = takes_row ? static_cast<uint32_t>(row) : kNoRow;
  if (!takes_row) return;
  if (slot < 0) slot = args.state.slots_in_use() + new_before;
  work.slot[row] = static_cast<uint32_t>(slot);
  work.key[row] = static_cast<int64_t>(work.set.keys[at]);
}

// Whether the call fits; what it needs.
TORCHVOX_HD void plan_call(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                           int64_t touched, int64_t fresh) {
  const OccupancyState& state = args.state;
  int64_t* const counts = args.counts;
  const int64_t in_use = state.slots_in_use();
  int64_t bits = 0;
  counts[kRegionsInUse] = in_use;
  if (state.status[kStateRefused] != 0) {
    bits = kRefusedBefore;
  } else if (*work.set.full || touched > work.set.limit()) {
    counts[kRegionsTouched] = work.set.limit();
    bits = args.limited || args.skip_missing ? kTooManyTouched : kTooManyRegions;
  } else {
    const int64_t resident = touched - fresh, rows = args.skip_missing ? resident : touched;
    counts[kRegionsTouched] = rows;
    counts[args.skip_missing ? kRegionsSkipped : kNewRegions] = fresh;
    if (args.limited && rows > args.max_touched) bits |= kTooManyTouched;
    if (!args.skip_missing && in_use + fresh > state.capacity) bits |= kTooManyRegions;
    const int64_t then = args.skip_missing ? in_use : in_use + fresh;
    *work.plan = {rows, in_use, then};
    if (bits == 0) counts[kRegionsInUse] = then;
  }
  counts[kOverflowBits] = bits;
  if (bits != 0) {
    *work.plan = {-1, in_use, in_use};
    counts[kRayWalked] = 0;
    state.status[kStateRefused] = 1;
  }
}

// ---- commit -------------------------------------------------------------------------------------

TORCHVOX_HD void commit_region(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                               int64_t row) {
  const uint32_t slot = work.slot[row];
  const int32_t stamp = args.stamp ? *args.stamp : 0;
  int32_t* const stamped = &args.state.region_stamp[slot];
  if (slot >= work.plan->first_new) {
    args.state.region_key[slot] = work.key[row];
    args.state.enter(slot);
  }
  if (stamp > *stamped) *stamped = stamp;
}

// The first count of a voxel: one that no miss changes has enough of them from the start.
template <class Word>
TORCHVOX_HD Word first_count(const OccupancyIntegrateArgs& args, int64_t voxel, int64_t enough) {
  if (args.state.hit_miss || args.state.logodds[voxel] != args.sensor.clamp_min) return 0;
  return static_cast<Word>(enough);
}

// ---- walk ---------------------------------------------------------------------------------------

// How many misses of a voxel are enough in this call.
TORCHVOX_HD int64_t misses_that_matter(const OccupancyIntegrateArgs& args) {
  if (args.state.hit_miss) return int64_t{1} << 32;
  return enough_misses(args.sensor, args.state.status[kHighestClamp], args.scan);
}

// kShared: other threads add as well.
template <bool kShared, class Word>
TORCHVOX_HD void add_miss(Word* word, int64_t enough) {
  if (Counts<Word>::misses(load_any(word)) >= enough) return;
  if constexpr (kShared) {
    atomic_add(word, Word{1});
  } else {
    ++*word;
  }
}
template <bool kShared, class Word>
TORCHVOX_HD void add_hit(Word* word, int64_t enough) {
  constexpr Word kHit = Word{1} << Counts<Word>::kMissBits;
  if constexpr (!kShared) {
    if (sizeof(Word) == 8 || Counts<Word>::hits(*word) < enough) *word += kHit;
  } else if constexpr (sizeof(Word) == 8) {
    atomic_add(word, kHit);
  } else {
    Word old = load_relaxed(word);
    while (Counts<Word>::hits(old) < enough && !atomic_replace(word, &old, old + kHit)) {
    }
  }
}

template <bool kShared, class Word>
TORCHVOX_HD void walk_ray(const OccupancyIntegrateArgs& args, const IntegrateWork& work, int64_t i,
                          int64_t enough) {
  Ray ray;
  if (args.rays.ray(i, &ray) != kRayWalked) return;
  const RayPart part = args.rays.part(ray);
  if (part.visits == 0) return;
  const int64_t steps = ray.line.end().steps(), first = part.first.steps();
  const bool passes = !args.has(kExcludeRay);
  const bool begins = !(args.has(kExcludeOrigin) || ray.flags & kRaySecondary);
  RayWalk<kUnitShift> walk(ray.line, part);
  Word* counts = nullptr;  // of the region
  const int16_t* logodds = nullptr;
  int64_t region = -1;
  for (int64_t visit = first;; ++visit) {
    const int64_t key = region_key_of_voxel(walk.cell);
    if (key != region) {
      region = key;
      const int64_t at = work.set.find(key);
      const uint32_t row = at < 0 ? kNoRow : work.row[at];
      counts =
          row == kNoRow ? nullptr : static_cast<Word*>(work.counts) + int64_t{row} * kRegionVoxels;
      if (counts && args.has(kStopAtOccupied)) {
        logodds = args.state.logodds + int64_t{work.slot[row]} * kRegionVoxels;
      }
    }
    const int32_t voxel = voxel_in_region(walk.cell);
    if (visit == steps) {
      const bool cut = !ray.has_end();
      const bool nothing = args.has(kExcludeSample) || (ray.flags & kRayHitOnly && cut);
      if (nothing || !counts) return;
      if (args.has(kEndAsFree)) {
        add_miss<kShared>(&counts[voxel], enough);
      } else if (!cut) {
        add_hit<kShared>(&counts[voxel], enough_hits(args.sensor, args.scan));
      }
      return;
    }
    if (counts && (visit == 0 ? begins : passes)) add_miss<kShared>(&counts[voxel], enough);
    if (args.has(kStopAtOccupied) && counts && is_occupied(logodds[voxel], args.threshold)) return;
    if (walk.left == 0) return;
    walk.step();
  }
}

// ---- finish -------------------------------------------------------------------------------------

TORCHVOX_HD bool is_excluded(const OccupancyIntegrateArgs& args, int16_t logodds) {
  const bool unobserved = logodds == kUnobserved;
  const bool occupied = is_occupied(logodds, args.threshold);
  return (args.has(kExcludeUnobserved) && unobserved) || (args.has(kExcludeOccupied) && occupied) ||
      (args.has(kExcludeFree) && !unobserved && !occupied) ||
      (args.has(kLockMin) && !unobserved && logodds <= args.sensor.clamp_min) ||
      (args.has(kLockMax) && logodds >= args.sensor.clamp_max);
}

// Updates one voxel; true if its log-odds changed.
template <class Word>
TORCHVOX_HD bool finish_voxel(const OccupancyIntegrateArgs& args, int64_t voxel, Word word) {
  if (word == 0) return false;
  int16_t* const logodds = &args.state.logodds[voxel];
  const int16_t before = *logodds;
  if (is_excluded(args, before)) return false;
  const int64_t hits = Counts<Word>::hits(word), misses = Counts<Word>::misses(word);
  const int16_t after = update_logodds(before, hits, misses, args.sensor, args.scan);
  if (args.state.hit_miss) {
    int32_t* const both = &args.state.hit_miss[2 * voxel];
    both[0] = static_cast<int32_t>(lowered(both[0] + hits, INT32_MAX));
    both[1] = static_cast<int32_t>(lowered(both[1] + misses, INT32_MAX));
  }
  if (after == before) return false;
  *logodds = after;
  return true;
}

// When no other step reads the status any more.
TORCHVOX_HD void finish_status(const OccupancyIntegrateArgs& args, const IntegrateWork& work) {
  int64_t* const status = args.state.status;
  if (work.plan->goes >= 0) status[kSlotsInUse] = work.plan->in_use;
  if (args.counts[kRayWalked] > 0) {
    status[kHighestClamp] = raised(status[kHighestClamp], args.sensor.clamp_max);
  }
}

}  // namespace torchvox
