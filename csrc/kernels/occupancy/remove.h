// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_remove_: removes regions, moves the last rows into the holes, and rebuilds the
// table.
#pragma once

#include "csrc/kernels/occupancy/state.h"

namespace torchvox {

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
