// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_remove_: regions leave, the last rows move into the holes, the table is built
// again.
#pragma once

#include "csrc/kernels/occupancy/state.h"

namespace torchvox {

struct RemoveArgs {
  OccupancyState state;
  const bool* mask = nullptr;  // [C] regions that leave
  int64_t* counts = nullptr;  // [kStateCounts]
};

TORCHVOX_KERNEL(RemoveArgs);

// Which of the rows of a layer leave, and where those behind the new number of rows go.
struct Compaction {
  int32_t* leaving;  // [rows] that leave, up to and with this one
  int32_t* holes;  // [rows] that become free among those that stay in use
  int64_t rows;

  Compaction(int64_t rows_in, Workspace& workspace)
      : leaving(workspace.take<int32_t>(rows_in)),
        holes(workspace.take<int32_t>(rows_in)),
        rows(rows_in) {}

  TORCHVOX_HD int64_t below(int64_t row) const { return row > 0 ? leaving[row - 1] : 0; }
  TORCHVOX_HD bool leaves(int64_t row) const { return leaving[row] > below(row); }
  TORCHVOX_HD int64_t left(int64_t in_use) const { return in_use - below(in_use); }
  TORCHVOX_HD void list_hole(int64_t row, int64_t in_use) const {
    if (row < left(in_use) && leaves(row)) holes[below(row)] = static_cast<int32_t>(row);
  }
  // Where a row goes that is not among those that stay in use: -1 for good.
  TORCHVOX_HD int64_t target(int64_t row, int64_t stay) const {
    return leaves(row) ? -1 : holes[row - stay - (below(row) - below(stay))];
  }
};

// Steps of a call, each over all of its items, those of regions first: mark, sums of `leaving`,
// list_hole, vacate, enter.
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

// Place i of the table, and region i. Those of `samples` are cleared before.
TORCHVOX_HD void mark_leaving(const Removal& removal, int64_t i) {
  removal.state.table[i] = kNoSlot;
  if (i >= removal.regions.rows) return;
  removal.regions.leaving[i] = removal.leaves(i);
  const int64_t row = removal.leaves(i) ? removal.state.samples_of(i) : -1;
  if (row >= 0 && row < removal.sample_rows()) store_relaxed(&removal.samples.leaving[row], 1);
}

// Region `slot`; where it is C, the counts; behind, rows of samples.
TORCHVOX_HD void list_hole(const Removal& removal, int64_t slot) {
  const int64_t in_use = removal.in_use(), capacity = removal.regions.rows;
  if (slot < capacity) return removal.regions.list_hole(slot, in_use);
  const int64_t sample_rows = removal.sample_rows();
  if (slot > capacity) return removal.samples.list_hole(slot - capacity - 1, sample_rows);
  const int64_t left = removal.regions.left(in_use), gone = in_use - left;
  const int64_t counts[kStateCounts] = {gone, gone, 0, 0,
                                        left, 0,    0, removal.samples.left(sample_rows)};
  for (int k = 0; k < kStateCounts; ++k) removal.counts[k] = counts[k];
}

// Region `slot`, or a row of samples, behind those that stay in use, leaves for good or for a hole.
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

// Region `slot` into the table, with the new row of its samples; where it is C, how many there are.
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
