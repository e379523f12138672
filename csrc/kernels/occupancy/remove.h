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

// Steps of a call, each over all of its items: mark, sums of `leaving`, list_hole, vacate, enter.
struct Removal : RemoveArgs {
  int32_t* leaving;  // [C] regions that leave, up to and with this one
  int32_t* holes;  // [C] slots that become free among those that stay in use

  Removal(const RemoveArgs& args, Workspace& workspace)
      : RemoveArgs(args),
        leaving(workspace.take<int32_t>(args.state.capacity)),
        holes(workspace.take<int32_t>(args.state.capacity)) {}

  TORCHVOX_HD bool leaves(int64_t slot) const { return slot < state.slots_in_use() && mask[slot]; }
  TORCHVOX_HD int64_t leaving_below(int64_t slot) const { return slot > 0 ? leaving[slot - 1] : 0; }
  // Slots in use afterwards.
  TORCHVOX_HD int64_t left() const {
    const int64_t in_use = state.slots_in_use();
    return in_use - leaving_below(in_use);
  }
};

// Place i of the table, and region i.
TORCHVOX_HD void mark_leaving(const Removal& removal, int64_t i) {
  removal.state.table[i] = kNoSlot;
  if (i < removal.state.capacity) removal.leaving[i] = removal.leaves(i);
}

// Region `slot`; where it is C, the counts.
TORCHVOX_HD void list_hole(const Removal& removal, int64_t slot) {
  const int64_t left = removal.left(), gone = removal.state.slots_in_use() - left;
  if (slot < left && removal.leaves(slot)) {
    removal.holes[removal.leaving_below(slot)] = static_cast<int32_t>(slot);
  }
  if (slot < removal.state.capacity) return;
  const int64_t counts[kStateCounts] = {gone, gone, 0, 0, left};
  for (int k = 0; k < kStateCounts; ++k) removal.counts[k] = counts[k];
}

// Region `slot`, behind those that stay in use, leaves for good or for a hole.
TORCHVOX_HD void vacate_region(const Removal& removal, int64_t slot, Lanes lanes) {
  const int64_t left = removal.left();
  if (slot < left || slot >= removal.state.slots_in_use()) return;
  const int64_t gone = removal.leaving_below(slot) - removal.leaving_below(left);
  removal.state.vacate(slot, removal.leaves(slot) ? -1 : removal.holes[slot - left - gone], lanes);
}

// Region `slot` into the table; where it is C, how many there are.
TORCHVOX_HD void enter_region(const Removal& removal, int64_t slot) {
  const int64_t left = removal.counts[kInUse];
  if (slot < left) removal.state.enter(static_cast<uint32_t>(slot));
  if (slot == removal.state.capacity) removal.state.status[kSlotsInUse] = left;
}

}  // namespace torchvox
