// SPDX-License-Identifier: Apache-2.0
//
// Entry of occupancy_insert_: regions by ascending keys, into slots of their own or, where there is
// one, into those that have their keys. All of them or none.
#pragma once

#include "csrc/kernels/occupancy/state.h"

namespace torchvox {

enum class InsertMode { kAdd, kReplace, kKeep };

struct InsertArgs {
  OccupancyState state;
  OccupancyState given;  // read: region_key [K], and, unless null, stamps and layers [K]
  IndexArray num_valid;  // [1]
  Sensor sensor;
  InsertMode mode = InsertMode::kAdd;
  int64_t* counts = nullptr;  // [kStateCounts]

  TORCHVOX_HD int64_t rows() const {
    const int64_t most = given.capacity;
    return num_valid.given() ? clamp_index(num_valid[0], 0, most) : most;
  }
  // Whether regions that exist change.
  TORCHVOX_HD bool merges() const { return given.logodds && mode != InsertMode::kKeep; }
};

TORCHVOX_KERNEL(InsertArgs);

inline constexpr int32_t kNewRegion = -1, kRefusedRow = -2;

struct Insertion : InsertArgs {
  int64_t* highest;  // [K] of the keys before, -1 at first: those that are no higher are refused
  int32_t* slot;  // [K] of a region that exists, kNewRegion or kRefusedRow
  uint64_t* number;  // [K] regions new << 32 | rows accepted, up to and with this one
  int64_t* in_use;  // [1] slots before

  Insertion(const InsertArgs& args, Workspace& workspace)
      : InsertArgs(args),
        highest(workspace.take<int64_t>(args.given.capacity)),
        slot(workspace.take<int32_t>(args.given.capacity)),
        number(workspace.take<uint64_t>(args.given.capacity)),
        in_use(workspace.take<int64_t>(1)) {}

  TORCHVOX_HD uint64_t numbered(int64_t row) const {
    return uint64_t{slot[row] == kNewRegion} << 32 | (slot[row] != kRefusedRow);
  }
  TORCHVOX_HD uint64_t total() const { return given.capacity > 0 ? number[given.capacity - 1] : 0; }
  TORCHVOX_HD bool fits() const {
    return *in_use + static_cast<int64_t>(total() >> 32) <= state.capacity;
  }
};

// The slot of row i; where it is K, the slots before.
TORCHVOX_HD void find_region(const Insertion& insertion, int64_t row) {
  const OccupancyState& state = insertion.state;
  if (row == insertion.given.capacity) {
    *insertion.in_use = state.slots_in_use();
    return;
  }
  const int64_t key = insertion.given.region_key[row];
  const bool refused = row >= insertion.rows() || key <= insertion.highest[row];
  insertion.slot[row] = refused ? kRefusedRow : static_cast<int32_t>(state.find(key));
}

TORCHVOX_HD void raise_highest_clamp(const OccupancyState& state, int32_t log_odds) {
  auto* const word = reinterpret_cast<uint64_t*>(&state.status[kHighestClamp]);
  if (log_odds > 0) atomic_raise(word, static_cast<uint64_t>(log_odds));
}

TORCHVOX_HD void finish_insertion(const Insertion& insertion) {
  const OccupancyState& state = insertion.state;
  const bool fits = insertion.fits();
  const int64_t added = static_cast<int64_t>(insertion.total() >> 32);
  const int64_t accepted = static_cast<int64_t>(insertion.total() & 0xffffffffu);
  const int64_t changed = !fits ? 0 : insertion.merges() ? accepted : added;
  const int64_t in_use = *insertion.in_use + (fits ? added : 0);
  int64_t* const counts = insertion.counts;
  counts[kRegionsChanged] = changed;
  counts[kRegionsGiven] = insertion.rows();
  counts[kKeysRefused] = insertion.rows() - accepted;
  counts[kRegionsNew] = added;
  counts[kInUse] = in_use;
  counts[kOverflow] = fits ? 0 : kTooManyRegions;
  for (int k = kOverflow + 1; k < kStateCounts; ++k) counts[k] = 0;
  if (changed > 0) raise_highest_clamp(state, insertion.sensor.clamp_max);
  state.status[kSlotsInUse] = in_use;
  if (!fits) state.status[kStateRefused] = 1;
}

// Row i of K; where it is K, what the call leaves besides.
TORCHVOX_HD void insert_region(const Insertion& insertion, int64_t row, Lanes lanes) {
  const OccupancyState &state = insertion.state, &given = insertion.given;
  if (row == given.capacity) {
    if (lanes.lane == 0) finish_insertion(insertion);
    return;
  }
  const bool is_new = insertion.slot[row] == kNewRegion;
  if (!insertion.fits() || insertion.slot[row] == kRefusedRow) return;
  if (!is_new && !insertion.merges()) return;
  const int64_t slot = is_new
      ? *insertion.in_use + static_cast<int64_t>(insertion.number[row] >> 32) - 1
      : insertion.slot[row];
  if (is_new && lanes.lane == 0) {
    state.region_key[slot] = given.region_key[row];
    state.enter(static_cast<uint32_t>(slot));
  }
  if (!given.logodds) return;
  const bool adds = insertion.mode == InsertMode::kAdd, copies = is_new || !adds;
  if (lanes.lane == 0 && (copies || given.region_stamp[row] > state.region_stamp[slot])) {
    state.region_stamp[slot] = given.region_stamp[row];
  }
  int32_t highest = kUnobserved;
  for (int64_t i = lanes.lane; i < kRegionVoxels; i += lanes.count) {
    const int16_t before = copies ? kUnobserved : state.logodds[slot * kRegionVoxels + i];
    int16_t log_odds = given.logodds[row * kRegionVoxels + i];
    if (log_odds == kUnobserved) {
      log_odds = before;
    } else if (adds) {
      log_odds = insertion.sensor.clamped(log_odds + (before == kUnobserved ? 0 : before));
    }
    state.logodds[slot * kRegionVoxels + i] = log_odds;
    if (log_odds > highest) highest = log_odds;
  }
  for (int64_t i = lanes.lane; state.hit_miss && i < 2 * kRegionVoxels; i += lanes.count) {
    int32_t* const count = &state.hit_miss[slot * 2 * kRegionVoxels + i];
    const int64_t sum =
        int64_t{given.hit_miss[row * 2 * kRegionVoxels + i]} + (copies ? 0 : *count);
    *count = static_cast<int32_t>(clamp_index(sum, INT32_MIN, INT32_MAX));
  }
  highest = lanes.max(highest);
  if (!adds && lanes.lane == 0) raise_highest_clamp(state, highest);
}

}  // namespace torchvox
