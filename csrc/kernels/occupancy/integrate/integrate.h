// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_integrate_. The order of rays never matters: a call counts hits and misses of
// each voxel in integers and then updates each voxel once.
//
//   read    reads the rays, each with the part of it that counts
//   touch   enters the regions that rays, or pieces of them, visit into the set of the call
//   mark    with samples: marks the regions in which rays end, which get a row of samples
//   number  gives each region a row and each new one a slot, in the order of the set; tests whether
//           everything fits
//   commit  enters new regions into the map and initializes the rows of counts; regions that fill
//           their bounding box well are found by their place in it, others through the set
//   walk    rays, or pieces of them, count misses in the rows, and hits, of few voxels, in a table
//   weigh   with samples: rays weigh their misses of voxels that have a distribution, and add up
//           samples for the voxels that they hit
//   hit     updates the voxels of the table by their hits and misses
//   finish  updates the other voxels by their misses
//
// A call that does not fit writes nothing but the refusal; all steps after `number` then do
// nothing. This file has the memory that the steps share, `read`, `number`, `commit` and the
// status; touch.h has touch and mark, weigh.h weigh, and votes.h walk, hit and finish.
#pragma once

#include "csrc/kernels/occupancy/state.h"
#include "csrc/kernels/rays/rays.h"

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

// Columns of `counts`; 0 to 4 are those of RayStatus and kRaysGiven.
enum IntegrateCount {
  kRaysTruncated = 5,
  kVisits,
  kVoxelsUpdated,
  kRegionsTouched,
  kNewRegions,
  kRegionsInUse,
  kOverflowBits,
  kRegionsSkipped,
  kNewSampleRows,
  kIntegrateCounts = 16
};
// Bits of kOverflowBits, with kTooManyRegions and kTooManySampleRows.
enum OverflowBit { kTooManyTouched = 1, kRefusedBefore = 8 };

inline constexpr int64_t kMostOfHalf = 2048;  // see votes.h

struct OccupancyIntegrateArgs {
  MapRays rays;
  OccupancyState state;
  Sensor sensor;
  int64_t max_touched = 0;
  bool limited = false;  // the caller set max_touched
  bool scan = false;
  bool skip_missing = false;
  uint32_t flags = 0;  // of IntegrateFlag
  double threshold = 0;
  const int32_t* stamp = nullptr;  // [1]
  const double* timestamps = nullptr;  // [rows] seconds, of hits
  double time_base = 0;
  Ndt ndt;
  const float* intensity = nullptr;  // [rows]
  double dark = 0, span = 1;  // the lowest intensity, and the highest minus the lowest
  int threads = 1;  // CPU threads that may be used; never decides a result
  int64_t* counts = nullptr;  // [kIntegrateCounts]

  TORCHVOX_HD bool has(uint32_t flag) const { return (flags & flag) != 0; }
  TORCHVOX_HD int64_t rows() const {
    return max_touched < state.capacity ? max_touched : state.capacity;
  }
  // Whether every hit, and every miss, is counted, instead of only as many as log-odds need.
  TORCHVOX_HD bool counts_hits() const { return state.hit_miss || samples(); }
  TORCHVOX_HD bool counts_misses() const { return state.hit_miss || state.samples.passes; }
  TORCHVOX_HD bool samples() const { return state.samples.rows > 0; }
  // Whether counts of misses beyond kMostOfHalf never matter, whatever the state, so that 16 bits
  // suffice.
  bool counts_little() const {
    return !state.hit_miss && !samples() && enough_misses(sensor, INT16_MAX, scan) <= kMostOfHalf;
  }
  // Intensity in 65535ths of the range.
  TORCHVOX_HD uint64_t intensity_of(int64_t ray) const {
    const double part = (double{intensity[ray]} - dark) / span * 65535;
    return !(part > 0) ? 0 : part >= 65535 ? 65535 : static_cast<uint64_t>(floor(part + 0.5));
  }
  // Whether a ray that is not stopped misses its first voxel, those between, and the one where it
  // ends; whether it hits the latter.
  TORCHVOX_HD bool misses_first(const Ray& ray) const {
    return !(has(kExcludeOrigin) || ray.flags & kRaySecondary);
  }
  TORCHVOX_HD bool misses_between() const { return !has(kExcludeRay); }
  TORCHVOX_HD bool misses_end(const Ray& ray) const {
    return has(kEndAsFree) && !has(kExcludeSample) && (ray.has_end() || !(ray.flags & kRayHitOnly));
  }
  TORCHVOX_HD bool hits(const Ray& ray) const {
    return ray.has_end() && !has(kEndAsFree) && !has(kExcludeSample);
  }
  // The same if only a part of the ray counts.
  TORCHVOX_HD bool hits(const Ray& ray, const RayPart& part) const {
    return hits(ray) && part.visits > 0 && part.last.steps() == ray.line.end().steps();
  }
};

TORCHVOX_KERNEL(OccupancyIntegrateArgs);

// Hits of voxels: a table with linear probing, of at least twice as many places as rays.
struct HitTable {
  static constexpr uint64_t kNone = ~uint64_t{0};

  uint64_t* voxels = nullptr;  // [size]: row * kRegionVoxels + voxel in the region, or kNone
  uint32_t* hits = nullptr;  // [size]: hits, minus one
  int64_t size = 0;  // a power of two

  // Adds a hit; counts may stop at `most`.
  TORCHVOX_HD void add(uint64_t voxel, int64_t most) const {
    for (int64_t at = static_cast<int64_t>(mix_key(voxel));; ++at) {
      at &= size - 1;
      uint64_t here = load_relaxed(&voxels[at]);
      bool placed = false;
      while (here == kNone && !placed) placed = atomic_replace(&voxels[at], &here, voxel);
      if (!placed && here != voxel) continue;
      if (count_at(at) < most) atomic_add(&hits[at], 1u);
      return;
    }
  }
  // The place of a voxel, which must be in the table.
  TORCHVOX_HD int64_t find(uint64_t voxel) const {
    int64_t at = static_cast<int64_t>(mix_key(voxel)) & (size - 1);
    while (voxels[at] != voxel) at = (at + 1) & (size - 1);
    return at;
  }
  TORCHVOX_HD int64_t count_at(int64_t at) const { return load_relaxed(&hits[at]) + 1u; }
};

constexpr uint32_t kNoRow = 0xffffffff;

// The row of a region in the state's samples, and its row of votes in this call.
struct SampleRow {
  static constexpr int32_t kNone = -1, kNew = -2;

  int32_t row = kNone, sums = kNone;
};
// Votes of misses that depend on the distribution of a voxel.
struct SampleVotes {
  uint64_t missed;  // minus the log-odds of its misses, in 1/65536
  uint32_t through;  // misses that went through the surface
};

// The memory that the steps share, in the workspace.
struct IntegrateWork {
  RegionSet set;
  uint32_t* row = nullptr;  // [set.size]: row of a region, kNoRow if it is skipped
  uint32_t* slot = nullptr;  // [rows]
  int64_t* key = nullptr;  // [rows]
  struct ReadRay {
    Ray ray;
    RayPart part;  // the part that counts, without visits if the ray is filtered out
  }* rays = nullptr;  // [points.rows]
  struct Zeros {  // values that start at 0
    uint32_t bounds[RegionBox::kWords];  // of the regions that are touched
    uint32_t full;  // of the set
    uint64_t next[3];  // CUDA: the next ray, or piece of one, for a lane to touch, walk and weigh
  }* zeros = nullptr;
  uint8_t* ends = nullptr;  // [set.size] with samples: whether rays end in the region
  SampleSums* sums = nullptr;  // [hits.size]
  SampleRow* samples = nullptr;  // [rows]
  SampleVotes* votes = nullptr;  // [sample_rows, kRegionVoxels]
  int64_t sample_rows = 0;
  uint32_t* box = nullptr;  // [set.size]: row of a region by its place in the box
  HitTable hits;
  void* counts = nullptr;  // [rows + 1, kRegionVoxels] misses; the last row for skipped regions
  struct Plan {
    int64_t rows;  // regions to walk, -1 if the call is refused
    int64_t first_new;  // slots in use before the call
    int64_t in_use;  // and after
    int64_t sample_rows;  // in use after the call
  }* plan = nullptr;

  IntegrateWork(const OccupancyIntegrateArgs& args, Workspace& workspace) {
    set.size = RegionSet::size_for(args.max_touched);
    set.keys = workspace.take<uint64_t>(set.size);
    hits.size = power_of_two_from(2 * args.rays.points.rows);
    hits.voxels = workspace.take<uint64_t>(hits.size);
    hits.hits = workspace.take<uint32_t>(hits.size);
    box = workspace.take<uint32_t>(set.size);
    zeros = workspace.take<Zeros>(1);
    if (args.samples()) {
      ends = workspace.take<uint8_t>(set.size);
      sums = workspace.take<SampleSums>(hits.size);
      samples = workspace.take<SampleRow>(args.rows());
      sample_rows = lowered(args.rows(), args.state.samples.rows);
      if (args.state.samples.cov) {
        votes = workspace.take<SampleVotes>(sample_rows * kRegionVoxels);
      }
    }
    set.full = zeros ? &zeros->full : nullptr;
    row = workspace.take<uint32_t>(set.size);
    slot = workspace.take<uint32_t>(args.rows());
    key = workspace.take<int64_t>(args.rows());
    rays = workspace.take<ReadRay>(args.rays.points.rows);
    counts =
        workspace.take<char>((args.rows() + 1) * kRegionVoxels * (args.counts_little() ? 2 : 4));
    plan = workspace.take<Plan>(1);
  }

  // The part of ray i that counts, or piece j of n of it.
  TORCHVOX_HD RayPart part_of(int64_t i, int j, int n) const {
    const auto& [ray, part] = rays[i];
    return n > 1 && part.visits > 0 ? ray.line.piece(part, j, n) : part;
  }
  // The row of the region of a voxel, whose place is that of rows_by_place(); kNoRow if it is
  // skipped.
  TORCHVOX_HD uint32_t row_of(const RegionBox& rows, uint32_t place, const int32_t voxel[3]) const {
    if (rows.values) return rows.values[place];
    const int64_t at = set.find(region_key_of_voxel(voxel));
    return at < 0 ? kNoRow : row[at];
  }
  TORCHVOX_HD RegionBox rows_by_place() const { return {zeros->bounds, box, set.size}; }
  // The counts of misses of a row.
  template <class Count>
  TORCHVOX_HD Count* counts_of(int64_t row) const {
    return static_cast<Count*>(counts) + row * kRegionVoxels;
  }
  // Whether the region of a row is new, so that its voxels still hold the fill; and the place of
  // its voxel i in the state.
  TORCHVOX_HD bool is_new(int64_t row) const { return slot[row] >= plan->first_new; }
  TORCHVOX_HD int64_t voxel_of(int64_t row, int64_t i) const {
    return slot[row] * int64_t{kRegionVoxels} + i;
  }
  // The votes of a row's voxels by their distributions, or null.
  TORCHVOX_HD SampleVotes* votes_of(int64_t row) const {
    const int32_t at = votes ? samples[row].sums : -1;
    return at < 0 ? nullptr : votes + at * int64_t{kRegionVoxels};
  }
};

// ---- read ---------------------------------------------------------------------------------------

// Reads one ray and returns its status.
TORCHVOX_HD RayStatus read_ray(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                               int64_t i) {
  Ray ray;
  RayPart part{};
  const RayStatus status = args.rays.ray(i, &ray);
  if (status == kRayWalked && args.state.status[kStateRefused] == 0) {
    part = args.rays.part(ray);
  } else {
    ray.truncated = false;
  }
  work.rays[i] = {ray, part};
  return status;
}

// ---- number -------------------------------------------------------------------------------------

// Numbers of regions, of new ones, of rows of samples that regions have or get, and of new ones.
struct RegionNumbers {
  int64_t regions = 0, fresh = 0, sampled = 0, fresh_samples = 0;
};

// The row of samples of the region at a position of the set, whose slot is -1 if it is new: a row,
// kNew or kNone.
TORCHVOX_HD int64_t samples_before(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                                   int64_t at, int64_t slot) {
  if (!args.samples() || (slot < 0 && args.skip_missing)) return SampleRow::kNone;
  const int64_t row = slot < 0 ? -1 : args.state.samples_of(slot);
  return row >= 0 ? row : work.ends[at] ? SampleRow::kNew : SampleRow::kNone;
}
// Gives the region at a position its row and slot, from the numbers of those at earlier positions.
TORCHVOX_HD void number_region(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                               int64_t at, int64_t slot, int64_t samples,
                               const RegionNumbers& before) {
  const int64_t row = args.skip_missing ? before.regions - before.fresh : before.regions;
  const bool takes_row = (slot >= 0 || !args.skip_missing) && row < args.rows();
  work.row[at] = takes_row ? static_cast<uint32_t>(row) : kNoRow;
  if (!takes_row) return;
  if (slot < 0) slot = args.state.slots_in_use() + before.fresh;
  work.slot[row] = static_cast<uint32_t>(slot);
  work.key[row] = static_cast<int64_t>(work.set.keys[at]);
  if (!args.samples()) return;
  if (samples == SampleRow::kNew) samples = args.state.sample_rows_in_use() + before.fresh_samples;
  // Out of bounds if two regions of the state share one row, or if the call does not fit.
  const bool keeps =
      samples >= 0 && samples < args.state.samples.rows && before.sampled < work.sample_rows;
  work.samples[row] = {};
  if (keeps) {
    work.samples[row] = {static_cast<int32_t>(samples), static_cast<int32_t>(before.sampled)};
  }
}

// Decides whether the call fits, and writes the plan and the counts of regions.
TORCHVOX_HD void plan_call(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                           const RegionNumbers& all) {
  const OccupancyState& state = args.state;
  int64_t* const counts = args.counts;
  const int64_t in_use = state.slots_in_use();
  int64_t bits = 0;
  counts[kRegionsInUse] = in_use;
  if (state.status[kStateRefused] != 0) {
    bits = kRefusedBefore;
  } else if (*work.set.full || all.regions > work.set.limit()) {
    counts[kRegionsTouched] = work.set.limit();
    bits = args.limited || args.skip_missing ? kTooManyTouched : kTooManyRegions;
  } else {
    const int64_t resident = all.regions - all.fresh;
    const int64_t rows = args.skip_missing ? resident : all.regions;
    counts[kRegionsTouched] = rows;
    counts[args.skip_missing ? kRegionsSkipped : kNewRegions] = all.fresh;
    counts[kNewSampleRows] = all.fresh_samples;
    if (args.limited && rows > args.max_touched) bits |= kTooManyTouched;
    // Also correct for a corrupt state that has more resident regions than slots in use.
    const int64_t slots = raised(in_use, resident) + all.fresh;
    if (!args.skip_missing && slots > state.capacity) bits |= kTooManyRegions;
    const int64_t then = args.skip_missing ? in_use : in_use + all.fresh;
    const int64_t sample_rows = state.sample_rows_in_use() + all.fresh_samples;
    if (sample_rows > state.samples.rows) bits |= kTooManySampleRows;
    *work.plan = {rows, in_use, then, sample_rows};
    if (bits == 0) counts[kRegionsInUse] = then;
  }
  counts[kOverflowBits] = bits;
  if (bits != 0) {
    *work.plan = {-1, in_use, in_use, 0};
    counts[kRayWalked] = 0;
    state.status[kStateRefused] = 1;
  }
}

// ---- commit -------------------------------------------------------------------------------------

// Writes the key, stamp and row of samples of a row's region, and enters it if it is new.
TORCHVOX_HD void commit_region(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                               int64_t row) {
  const uint32_t slot = work.slot[row];
  const int32_t stamp = args.stamp ? *args.stamp : 0;
  int32_t* const stamped = &args.state.region_stamp[slot];
  const RegionBox rows = work.rows_by_place();
  if (rows.values) {
    const int64_t key = work.key[row];
    rows.values[rows.place(region_of_key(key, 0), region_of_key(key, 1), region_of_key(key, 2))] =
        static_cast<uint32_t>(row);
  }
  if (slot >= work.plan->first_new) {
    args.state.region_key[slot] = work.key[row];
    args.state.enter(slot);
  }
  if (stamp > *stamped) *stamped = stamp;
  if (args.samples()) args.state.sample_row[slot] = work.samples[row].row;
}

// ---- finish -------------------------------------------------------------------------------------

// Updates the status, after all steps that read it.
TORCHVOX_HD void finish_status(const OccupancyIntegrateArgs& args, const IntegrateWork& work) {
  int64_t* const status = args.state.status;
  if (work.plan->rows >= 0) {
    status[kSlotsInUse] = work.plan->in_use;
    status[kSampleRowsInUse] = work.plan->sample_rows;
  }
  if (args.counts[kRayWalked] > 0) {
    status[kHighestClamp] = raised(status[kHighestClamp], args.sensor.clamp_max);
  }
}

}  // namespace torchvox
