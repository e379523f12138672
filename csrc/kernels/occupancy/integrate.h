// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_integrate_. Order never matters: a call counts hits and misses of each voxel
// in integers and then updates each voxel once.
//
//   touch   rays enter the regions that they visit into the call's set
//   number  a row for each region, a slot for each new one, in the order of the set; does all fit?
//   commit  new regions into the map; rows of counts begin where each voxel needs it, and are found
//           by place where the regions fill their box well
//   walk    rays, or pieces of them, add to the counts
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
  // Counts of a voxel in 32 bits where 20 hold the first count, below 2^16, and the misses of all
  // rays, and 12 all hits that matter.
  bool narrow() const {
    return !state.hit_miss && rays.points.rows <= (1 << 20) - (1 << 16) &&
        enough_hits(sensor, scan) < 1 << 12;
  }
};

TORCHVOX_KERNEL(OccupancyIntegrateArgs);

// Misses in the lower bits, hits above them.
template <class Word>
struct Counts {
  static constexpr int kMissBits = sizeof(Word) == 4 ? 20 : 32;
  static constexpr Word kMisses = (Word{1} << kMissBits) - 1;
  static TORCHVOX_HD int64_t misses(Word word) { return static_cast<int64_t>(word & kMisses); }
  static TORCHVOX_HD int64_t hits(Word word) { return static_cast<int64_t>(word >> kMissBits); }
};

constexpr uint32_t kNoRow = 0xffffffff;

// What the steps share, in the workspace.
struct IntegrateWork {
  RegionSet set;
  uint32_t* row = nullptr;  // [set.size] of a region, kNoRow where it is skipped
  uint32_t* slot = nullptr;  // [rows]
  int64_t* key = nullptr;  // [rows]
  static constexpr int kZeros = 10;
  uint32_t* zeros = nullptr;  // [kZeros] what begins at 0: set.full, and
  uint32_t* bounds = nullptr;  // [RegionBox::kWords] of the regions that are touched,
  uint64_t* next = nullptr;  // ray, or piece of one, that a lane of a GPU takes
  uint32_t* box = nullptr;  // [set.size] row of a region by its place in the box
  void* counts = nullptr;  // [rows + 1, kRegionVoxels] words; the last row is of skipped regions
  struct Plan {
    int64_t goes;  // rows to walk, -1 if the call is refused
    int64_t first_new;  // slots in use before
    int64_t in_use;  // and after
  }* plan = nullptr;

  IntegrateWork(const OccupancyIntegrateArgs& args, Workspace& workspace) {
    set.size = RegionSet::size_for(args.max_touched);
    set.keys = workspace.take<uint64_t>(set.size);
    zeros = workspace.take<uint32_t>(kZeros);
    bounds = zeros;
    set.full = zeros + RegionBox::kWords;
    next = reinterpret_cast<uint64_t*>(zeros + kZeros - 2);
    row = workspace.take<uint32_t>(set.size);
    slot = workspace.take<uint32_t>(args.rows());
    key = workspace.take<int64_t>(args.rows());
    box = workspace.take<uint32_t>(set.size);
    counts = workspace.take<char>((args.rows() + 1) * kRegionVoxels * (args.narrow() ? 4 : 8));
    plan = workspace.take<Plan>(1);
  }

  // The row of a region that the call touches, kNoRow where it is skipped.
  TORCHVOX_HD uint32_t row_of(const RegionBox& rows, const int32_t voxel[3]) const {
    if (rows.values) {
      return rows.at(voxel[0] >> kRegionShift, voxel[1] >> kRegionShift, voxel[2] >> kRegionShift);
    }
    const int64_t at = set.find(region_key_of_voxel(voxel));
    return at < 0 ? kNoRow : row[at];
  }
  TORCHVOX_HD RegionBox rows_by_place() const { return {bounds, box, set.size}; }
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

// How many votes of a voxel are as good as any larger number in this call; the status that it
// leaves gives the same numbers.
struct Enough {
  int64_t hits, misses;
  int64_t of_unobserved;  // misses
  int64_t counted;  // misses, all that hit_miss can hold where it is kept

  explicit TORCHVOX_HD Enough(const OccupancyIntegrateArgs& args)
      : hits(enough_hits(args.sensor, args.scan)),
        misses(enough_misses(args.sensor,
                             raised(args.state.status[kHighestClamp], args.sensor.clamp_max),
                             args.scan)),
        of_unobserved(enough_misses_of(kUnobserved, args.sensor, args.scan)),
        counted(args.state.hit_miss ? INT32_MAX : misses) {}

  // Where the count of a voxel begins; with `counted` it needs no more misses, as in skipped rows.
  TORCHVOX_HD int64_t first_count(const OccupancyIntegrateArgs& args, int16_t logodds) const {
    if (args.state.hit_miss) return 0;
    const int64_t own =
        logodds == kUnobserved ? of_unobserved : enough_misses_of(logodds, args.sensor, args.scan);
    return misses - lowered(own, misses);
  }
};

TORCHVOX_HD void commit_region(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                               int64_t row) {
  const uint32_t slot = work.slot[row];
  const int32_t stamp = args.stamp ? *args.stamp : 0;
  int32_t* const stamped = &args.state.region_stamp[slot];
  const RegionBox rows = work.rows_by_place();
  if (rows.values) {
    const int64_t key = work.key[row];
    rows.at(region_of_key(key, 0), region_of_key(key, 1), region_of_key(key, 2)) =
        static_cast<uint32_t>(row);
  }
  if (slot >= work.plan->first_new) {
    args.state.region_key[slot] = work.key[row];
    args.state.enter(slot);
  }
  if (stamp > *stamped) *stamped = stamp;
}

// ---- walk ---------------------------------------------------------------------------------------

// kShared: other threads add as well. `crowded`: other lanes of the warp add to the same word.
template <bool kShared, class Word>
TORCHVOX_HD void add_miss(Word* word, [[maybe_unused]] bool crowded = false) {
#ifdef __CUDA_ARCH__
  if (crowded) {
    const unsigned same = __match_any_sync(__activemask(), reinterpret_cast<uintptr_t>(word));
    if (static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(same)) - 1) {
      atomic_add(word, static_cast<Word>(__popc(same)));
    }
    return;
  }
#endif
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

constexpr int kCrowdedVisits = 48;  // from the origin on
constexpr int kVisitsPerLookAtCount = 16;  // while counts take misses

// Whether flags change what a ray does at its visits; without them the checks are compiled out.
enum class Visits { kPlain, kFlagged };
inline bool visits_are_plain(const OccupancyIntegrateArgs& args) {
  return !args.has(kStopAtOccupied) && !args.has(kExcludeRay);
}

// A ray on its way: a visit at a time, so that lanes of a warp take rays of different lengths.
template <bool kShared, class Word, Visits kVisits>
struct RayVotes {
  const OccupancyIntegrateArgs& args;
  const IntegrateWork& work;
  const RegionBox rows;
  const Word enough;  // misses
  bool walks = false;

  TORCHVOX_HD RayVotes(const OccupancyIntegrateArgs& args_in, const IntegrateWork& work_in)
      : args(args_in),
        work(work_in),
        rows(work_in.rows_by_place()),
        enough(static_cast<Word>(Enough(args_in).counted)) {}

  // Begins piece j of n of ray i.
  TORCHVOX_HD void begin(int64_t i, int j, int n) {
    Ray ray;
    if (args.rays.ray(i, &ray) != kRayWalked) return;
    RayPart part = args.rays.part(ray);
    if (n > 1 && part.visits > 0) part = ray.line.piece(part, j, n);
    if (part.visits == 0) return;
    walk_ = RayWalk<kUnitShift>(ray.line, part);
    ends_ = part.last.steps() == ray.line.end().steps();
    has_end_ = ray.has_end();
    hit_only_ = (ray.flags & kRayHitOnly) != 0;
    const bool at_origin = part.first.steps() == 0;
    crowded_until_ = at_origin ? walk_.left - kCrowdedVisits : walk_.left;
    adds_ = at_origin ? !(args.has(kExcludeOrigin) || ray.flags & kRaySecondary) : passes();
    open_ = false;
    walks = true;
    if (kVisits == Visits::kPlain && !adds_) {  // then nothing looks at the origin
      walks = walk_.left > 0 || ends_;
      if (walk_.left > 0) walk_.step();
    }
    in_region_[0] = ~walk_.cell[0];  // in none
  }

  // The old count of the voxel is loaded before the step and looked at after it.
  TORCHVOX_HD void visit() {
    if (((walk_.cell[0] ^ in_region_[0]) | (walk_.cell[1] ^ in_region_[1]) |
         (walk_.cell[2] ^ in_region_[2])) >>
        kRegionShift) {
      for (int axis = 0; axis < 3; ++axis) in_region_[axis] = walk_.cell[axis];
      enter_region();
    }
    const int32_t voxel = voxel_in_region(walk_.cell);
    Word* const word = counts_ + voxel;
    const int32_t left = walk_.left;
    if (left == 0) {
      walks = false;
      if (ends_) return vote_of_end(word);
    }
    const bool adds = kVisits == Visits::kPlain || adds_;
    const bool looks = adds && (!open_ || left % kVisitsPerLookAtCount == 0);
    const Word old = looks ? load_any(word) : Word{0};
    if (stops() && slot_ >= 0 && walks) {
      walks = !is_occupied(args.state.logodds[slot_ * kRegionVoxels + voxel], args.threshold);
    }
    if (walks) walk_.step();
    const bool crowded = left > crowded_until_;
    const bool takes = (old & Counts<Word>::kMisses) < enough;  // so too without a look
    if (adds && takes) add_miss<kShared>(word, crowded);
    if (looks) open_ = takes && !crowded;
    adds_ = passes();
  }

 private:
  TORCHVOX_HD bool stops() const {
    return kVisits == Visits::kFlagged && args.has(kStopAtOccupied);
  }
  TORCHVOX_HD bool passes() const { return kVisits == Visits::kPlain || !args.has(kExcludeRay); }
  TORCHVOX_HD void enter_region() {
    const uint32_t row = work.row_of(rows, walk_.cell);
    const int64_t at = row == kNoRow ? args.rows() : int64_t{row};
    counts_ = static_cast<Word*>(work.counts) + at * kRegionVoxels;
    if (stops()) slot_ = row == kNoRow ? -1 : int64_t{work.slot[row]};
  }
  TORCHVOX_HD void vote_of_end(Word* word) const {
    if (args.has(kExcludeSample) || (hit_only_ && !has_end_)) return;
    if (args.has(kEndAsFree)) {
      add_miss<kShared>(word);
    } else if (has_end_) {
      add_hit<kShared>(word, enough_hits(args.sensor, args.scan));
    }
  }

  RayWalk<kUnitShift> walk_;
  int32_t in_region_[3];  // a voxel of the region of counts_
  Word* counts_;
  int64_t slot_;  // of the region, where rays stop
  int32_t crowded_until_;  // steps left
  bool open_;  // the last count that was looked at takes misses
  bool adds_, ends_, has_end_, hit_only_;
};

// ---- finish -------------------------------------------------------------------------------------

TORCHVOX_HD bool is_excluded(const OccupancyIntegrateArgs& args, int16_t logodds) {
  if (args.flags < kExcludeUnobserved) return false;
  const bool unobserved = logodds == kUnobserved;
  const bool occupied = is_occupied(logodds, args.threshold);
  return (args.has(kExcludeUnobserved) && unobserved) || (args.has(kExcludeOccupied) && occupied) ||
      (args.has(kExcludeFree) && !unobserved && !occupied) ||
      (args.has(kLockMin) && !unobserved && logodds <= args.sensor.clamp_min) ||
      (args.has(kLockMax) && logodds >= args.sensor.clamp_max);
}

// Updates one voxel; true if its log-odds changed. What is above `enough` counts as that.
template <class Word>
TORCHVOX_HD bool finish_voxel(const OccupancyIntegrateArgs& args, int64_t voxel, int16_t before,
                              Word word, const Enough& enough) {
  const auto first = static_cast<Word>(enough.first_count(args, before));
  if (word == first || is_excluded(args, before)) return false;
  const int64_t hits = Counts<Word>::hits(word);
  const int64_t misses = lowered(Counts<Word>::misses(word), enough.counted) - first;
  const int16_t after =
      update_logodds(before, static_cast<int32_t>(lowered(hits, enough.hits)),
                     static_cast<int32_t>(lowered(misses, enough.misses)), args.sensor, args.scan);
  if (args.state.hit_miss) {
    int32_t* const both = &args.state.hit_miss[2 * voxel];
    both[0] = static_cast<int32_t>(lowered(both[0] + hits, INT32_MAX));
    both[1] = static_cast<int32_t>(lowered(both[1] + misses, INT32_MAX));
  }
  if (after == before) return false;
  args.state.logodds[voxel] = after;
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
