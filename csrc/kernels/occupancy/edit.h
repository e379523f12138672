// SPDX-License-Identifier: Apache-2.0
//
// Entries of occupancy_decay_: log-odds shrink toward 0, and small ones are forgotten; of
// occupancy_insert_: inserts regions with ascending keys into new slots, or merges them into the
// slots that have their keys, all of them or none; of occupancy_remove_: removes regions, moves the
// last rows into the holes, and rebuilds the table.
#pragma once

#include "csrc/kernels/occupancy/state.h"

namespace torchvox {

struct DecayArgs {
  OccupancyState state;
  const bool* mask = nullptr;  // [C] regions that decay; null: all
  int64_t factor = 0;  // in 1/65536, 0 to 65536
  int64_t step = 0;  // units of log-odds, 0 or more
  int64_t forget = 0;  // units; values that are not larger become unobserved
  bool* empty = nullptr;  // [C] regions in use without an observed voxel
  int64_t* counts = nullptr;  // [kStateCounts]

  TORCHVOX_HD int16_t decayed(int16_t log_odds) const {
    const int64_t size = log_odds < 0 ? -log_odds : log_odds;
    int64_t left = (size * factor >> 16) - step;
    if (left < 0) left = 0;
    if (left <= forget) return kUnobserved;
    return static_cast<int16_t>(log_odds < 0 ? -left : left);
  }
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(DecayArgs);

// Lanes decay the voxels of region `slot`, or for slot C write the counts that are not sums. The
// caller clears the counts.
TORCHVOX_HD void decay_region(const DecayArgs& args, int64_t slot, Lanes lanes) {
  const OccupancyState& state = args.state;
  if (slot == state.capacity) {
    if (lanes.lane == 0) args.counts[kInUse] = state.slots_in_use();
    return;
  }
  const bool used = slot < state.slots_in_use();
  const bool decays = used && (!args.mask || args.mask[slot]);
  bool observed = false, changed = false;
  for (int64_t i = lanes.lane; used && i < kRegionVoxels; i += lanes.count) {
    const int64_t voxel = slot * kRegionVoxels + i;
    const int16_t before = state.logodds[voxel];
    const int16_t after = decays && before != kUnobserved ? args.decayed(before) : before;
    observed = observed || after != kUnobserved;
    if (after == before) continue;
    changed = true;
    state.logodds[voxel] = after;
    if (after == kUnobserved) state.forget(slot, i);
  }
  observed = lanes.any(observed);
  changed = lanes.any(changed);
  if (lanes.lane != 0) return;
  args.empty[slot] = used && !observed;
  auto* const sums = reinterpret_cast<uint64_t*>(args.counts);
  if (changed) atomic_add(&sums[kRegionsChanged], uint64_t{1});
  if (decays) atomic_add(&sums[kRegionsGiven], uint64_t{1});
}

enum class Merge { kAdd, kReplace, kKeep };

struct InsertArgs {
  OccupancyState state;
  OccupancyState given;  // read: region_key [K], and, unless null, stamps and layers [K], samples
  IndexArray num_valid;  // [1]
  Sensor sensor;
  Merge merge = Merge::kAdd;  // of regions that exist
  int64_t* counts = nullptr;  // [kStateCounts]

  TORCHVOX_HD int64_t rows() const {
    const int64_t most = given.capacity;
    return num_valid.given() ? clamp_index(num_valid[0], 0, most) : most;
  }
};

TORCHVOX_KERNEL(InsertArgs);

struct HigherKey {
  TORCHVOX_HD int64_t operator()(int64_t a, int64_t b) const { return a < b ? b : a; }
};

// Steps of a call, each over all of its items: highest keys so far, find_region(), prefix sums of
// `number`, insert_region(). K = given.capacity.
struct Insertion : InsertArgs {
  static constexpr int32_t kNew = -1, kRefused = -2;

  int64_t* highest;  // [K]: the highest key up to and including this one
  int32_t* slot;  // [K]: slot of an existing region, kNew or kRefused
  uint64_t* number;  // [K]: new regions << 32 | accepted rows, up to and including this one
  int32_t* sampled;  // [K]: new rows of samples, up to and including this one; null without samples
  int64_t* in_use;  // [2]: slots, and rows of samples, before the call

  Insertion(const InsertArgs& args, Workspace& workspace)
      : InsertArgs(args),
        highest(workspace.take<int64_t>(args.given.capacity)),
        slot(workspace.take<int32_t>(args.given.capacity)),
        number(workspace.take<uint64_t>(args.given.capacity)),
        sampled(keeps_samples() ? workspace.take<int32_t>(args.given.capacity) : nullptr),
        in_use(workspace.take<int64_t>(2)) {}

  bool keeps_samples() const { return given.samples.rows > 0 && state.samples.rows > 0; }

  TORCHVOX_HD uint64_t total() const { return given.capacity > 0 ? number[given.capacity - 1] : 0; }
  TORCHVOX_HD int64_t added() const { return static_cast<int64_t>(total() >> 32); }
  TORCHVOX_HD int64_t sample_rows_added() const {
    return sampled && given.capacity > 0 ? sampled[given.capacity - 1] : 0;
  }
  TORCHVOX_HD bool fits() const {
    return in_use[0] + added() <= state.capacity &&
        in_use[1] + sample_rows_added() <= state.samples.rows;
  }
  // Whether existing regions change.
  TORCHVOX_HD bool merges() const { return given.logodds && merge != Merge::kKeep; }
};

// Finds the slot of a row; for row K notes what is in use before the call.
TORCHVOX_HD void find_region(const Insertion& work, int64_t row) {
  if (row == work.given.capacity) {
    work.in_use[0] = work.state.slots_in_use();
    work.in_use[1] = work.state.sample_rows_in_use();
    return;
  }
  const int64_t key = work.given.region_key[row];
  const bool refused = row >= work.rows() || key < 0 || (row > 0 && key <= work.highest[row - 1]);
  const int64_t slot = refused ? Insertion::kRefused : work.state.find(key);
  work.slot[row] = static_cast<int32_t>(slot);
  work.number[row] = uint64_t{slot == Insertion::kNew} << 32 | !refused;
  if (!work.sampled) return;
  const bool changes = slot == Insertion::kNew || (slot >= 0 && work.merges());
  const bool has_row = slot >= 0 && work.state.samples_of(slot) >= 0;
  work.sampled[row] = changes && !has_row && work.given.samples_of(row) >= 0;
}

TORCHVOX_HD void raise_highest_clamp(const OccupancyState& state, int32_t log_odds) {
  auto* const word = reinterpret_cast<uint64_t*>(&state.status[kHighestClamp]);
  if (log_odds > 0) atomic_raise(word, static_cast<uint64_t>(log_odds));
}

// Writes the counts and the status of a call.
TORCHVOX_HD void finish_insertion(const Insertion& work) {
  const bool fits = work.fits();
  const int64_t added = work.added(), accepted = static_cast<uint32_t>(work.total());
  const int64_t changed = !fits ? 0 : work.merges() ? accepted : added;
  const int64_t in_use = work.in_use[0] + (fits ? added : 0);
  const int64_t samples = work.sample_rows_added();
  const int64_t sample_rows = work.in_use[1] + (fits ? samples : 0);
  const bool regions_fit = work.in_use[0] + added <= work.state.capacity;
  const bool samples_fit = work.in_use[1] + samples <= work.state.samples.rows;
  const int64_t bits = (regions_fit ? 0 : kTooManyRegions) | (samples_fit ? 0 : kTooManySampleRows);
  const int64_t counts[kStateCounts] = {
      changed, work.rows(), work.rows() - accepted, added, in_use, bits, samples, sample_rows};
  for (int k = 0; k < kStateCounts; ++k) work.counts[k] = counts[k];
  if (changed > 0) raise_highest_clamp(work.state, work.sensor.clamp_max);
  work.state.status[kSlotsInUse] = in_use;
  work.state.status[kSampleRowsInUse] = sample_rows;
  if (!fits) work.state.status[kStateRefused] = 1;
}

// Copies the samples of a row into a slot, or adds them to those that are there.
TORCHVOX_HD void insert_samples(const Insertion& work, int64_t row, int64_t slot, bool copies,
                                Lanes lanes) {
  const Samples &to = work.state.samples, &from = work.given.samples;
  const int64_t source = work.sampled ? work.given.samples_of(row) : -1;
  int64_t own = work.state.samples_of(slot);
  if (own < 0 && source >= 0) {
    own = work.in_use[1] + work.sampled[row] - 1;
    if (lanes.lane == 0) work.state.sample_row[slot] = static_cast<int32_t>(own);
  }
  for (int64_t i = lanes.lane; own >= 0 && i < kRegionVoxels; i += lanes.count) {
    const int64_t at = own * kRegionVoxels + i, other = source * kRegionVoxels + i;
    if (copies) to.forget(at);
    if (source < 0 || from.count[other] <= 0) continue;
    if (to.count[at] > 0) {
      add_samples(to, at, moments_of(from, other), false);
    } else {
      to.copy(at, from, other);
    }
    if (to.passes) to.add_passes(at, from.passes[2 * other], from.passes[2 * other + 1]);
  }
}

// Inserts a row; for row K finishes the call.
TORCHVOX_HD void insert_region(const Insertion& work, int64_t row, Lanes lanes) {
  const OccupancyState &state = work.state, &given = work.given;
  const bool first = lanes.lane == 0;
  if (row == given.capacity) {
    if (first) finish_insertion(work);
    return;
  }
  int64_t slot = work.slot[row];
  const bool is_new = slot == Insertion::kNew;
  if (slot == Insertion::kRefused || !work.fits() || !(is_new || work.merges())) return;
  if (is_new) {
    slot = work.in_use[0] + static_cast<int64_t>(work.number[row] >> 32) - 1;
    if (first) state.region_key[slot] = given.region_key[row];
    if (first) state.enter(static_cast<uint32_t>(slot));
  }
  if (!given.logodds) return;
  const bool adds = work.merge == Merge::kAdd, copies = is_new || !adds;
  if (first && (copies || given.region_stamp[row] > state.region_stamp[slot])) {
    state.region_stamp[slot] = given.region_stamp[row];
  }
  int32_t highest = 0;
  for (int64_t i = lanes.lane; i < kRegionVoxels; i += lanes.count) {
    int16_t& log_odds = state.logodds[slot * kRegionVoxels + i];
    const int16_t before = copies ? kUnobserved : log_odds;
    const int16_t other = given.logodds[row * kRegionVoxels + i];
    const bool observed = before != kUnobserved || other != kUnobserved;
    const int32_t sum = (before == kUnobserved ? 0 : before) + (other == kUnobserved ? 0 : other);
    log_odds = adds && observed ? work.sensor.clamped(sum) : other;
    if (!adds && log_odds > highest) highest = log_odds;
  }
  highest = lanes.max(highest);
  if (first) raise_highest_clamp(state, highest);
  for (int64_t i = lanes.lane; state.hit_miss && i < 2 * kRegionVoxels; i += lanes.count) {
    int32_t& count = state.hit_miss[slot * 2 * kRegionVoxels + i];
    const int64_t other = given.hit_miss[row * 2 * kRegionVoxels + i];
    count = static_cast<int32_t>(clamp_index(other + (copies ? 0 : count), INT32_MIN, INT32_MAX));
  }
  for (int64_t i = lanes.lane; i < kRegionVoxels; i += lanes.count) {
    const int64_t to = slot * kRegionVoxels + i, from = row * kRegionVoxels + i;
    if (state.touch && (copies || given.touch[from] > state.touch[to])) {
      state.touch[to] = given.touch[from];
    }
    if (state.traversal) {  // as unsigned numbers, which wrap around
      const uint64_t before = copies ? 0 : static_cast<uint64_t>(state.traversal[to]);
      state.traversal[to] =
          static_cast<int64_t>(before + static_cast<uint64_t>(given.traversal[from]));
    }
  }
  if (state.samples.rows > 0) insert_samples(work, row, slot, copies, lanes);
}

struct RemoveArgs {
  OccupancyState state;
  const bool* mask = nullptr;  // [C]: regions to remove
  int64_t* counts = nullptr;  // [kStateCounts]
};

TORCHVOX_KERNEL(RemoveArgs);

// Which rows of a layer leave, and where the rows beyond the new number of rows move.
struct Compaction {
  int32_t* leaving;  // [rows]: rows that leave, up to and including this one
  int32_t* holes;  // [rows]: rows that become free among the first left() ones
  int64_t rows;

  Compaction(int64_t rows_in, Workspace& workspace)
      : leaving(workspace.take<int32_t>(rows_in)),
        holes(workspace.take<int32_t>(rows_in)),
        rows(rows_in) {}

  TORCHVOX_HD int64_t below(int64_t row) const { return row > 0 ? leaving[row - 1] : 0; }
  TORCHVOX_HD bool leaves(int64_t row) const { return leaving[row] > below(row); }
  // The number of rows in use after the removal.
  TORCHVOX_HD int64_t left(int64_t in_use) const { return in_use - below(in_use); }
  TORCHVOX_HD void list_hole(int64_t row, int64_t in_use) const {
    if (row < left(in_use) && leaves(row)) holes[below(row)] = static_cast<int32_t>(row);
  }
  // Where a row beyond the first `stay` moves; -1 if it is removed.
  TORCHVOX_HD int64_t target(int64_t row, int64_t stay) const {
    return leaves(row) ? -1 : holes[row - stay - (below(row) - below(stay))];
  }
};

// Steps of a call, each over all of its items, those of regions first: mark_leaving(), prefix sums
// of `leaving`, list_hole(), vacate_region(), enter_region().
struct Removal : RemoveArgs {
  Compaction regions, samples;

  Removal(const RemoveArgs& args, Workspace& workspace)
      : RemoveArgs(args),
        regions(args.state.capacity, workspace),
        samples(args.state.samples.rows, workspace) {}

  TORCHVOX_HD int64_t in_use() const { return state.slots_in_use(); }
  TORCHVOX_HD int64_t sample_rows() const { return state.sample_rows_in_use(); }
  TORCHVOX_HD bool leaves(int64_t slot) const { return slot < in_use() && mask[slot]; }
};

// Clears place i of the table and marks region i and its samples, whose marks are cleared before.
TORCHVOX_HD void mark_leaving(const Removal& removal, int64_t i) {
  removal.state.table[i] = kNoSlot;
  if (i >= removal.regions.rows) return;
  removal.regions.leaving[i] = removal.leaves(i);
  const int64_t row = removal.leaves(i) ? removal.state.samples_of(i) : -1;
  if (row >= 0 && row < removal.sample_rows()) store_relaxed(&removal.samples.leaving[row], 1);
}

// Lists region `slot` if it is a hole; for slot C writes the counts; beyond, lists rows of samples.
TORCHVOX_HD void list_hole(const Removal& removal, int64_t slot) {
  const int64_t in_use = removal.in_use(), capacity = removal.regions.rows;
  if (slot < capacity) return removal.regions.list_hole(slot, in_use);
  const int64_t sample_rows = removal.sample_rows();
  if (slot > capacity) return removal.samples.list_hole(slot - capacity - 1, sample_rows);
  const int64_t left = removal.regions.left(in_use), removed = in_use - left;
  const int64_t counts[kStateCounts] = {removed, removed, 0, 0,
                                        left,    0,       0, removal.samples.left(sample_rows)};
  for (int k = 0; k < kStateCounts; ++k) removal.counts[k] = counts[k];
}

// Moves region `slot`, or a row of samples, into a hole or clears it, if it is beyond the rows that
// stay.
TORCHVOX_HD void vacate_region(const Removal& removal, int64_t slot, Lanes lanes) {
  const bool is_region = slot < removal.regions.rows;
  const Compaction& rows = is_region ? removal.regions : removal.samples;
  const int64_t row = is_region ? slot : slot - removal.regions.rows;
  const int64_t in_use = is_region ? removal.in_use() : removal.sample_rows();
  const int64_t stay = rows.left(in_use);
  if (row < stay || row >= in_use) return;
  const int64_t to = rows.target(row, stay);
  is_region ? removal.state.vacate(row, to, lanes) : removal.state.vacate_samples(row, to, lanes);
}

// Enters region `slot` into the table, with the new row of its samples; for slot C writes the
// status.
TORCHVOX_HD void enter_region(const Removal& removal, int64_t slot) {
  const OccupancyState& state = removal.state;
  const int64_t left = removal.counts[kInUse], samples_left = removal.counts[kSampleRows];
  if (slot < left) {
    const int64_t row = state.samples_of(slot);
    if (row >= samples_left) {
      state.sample_row[slot] = static_cast<int32_t>(removal.samples.target(row, samples_left));
    }
    state.enter(static_cast<uint32_t>(slot));
  }
  if (slot == state.capacity) {
    state.status[kSlotsInUse] = left;
    state.status[kSampleRowsInUse] = samples_left;
  }
}

}  // namespace torchvox
