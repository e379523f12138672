// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_decay_: log-odds shrink toward 0, and small ones are forgotten.
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

}  // namespace torchvox
