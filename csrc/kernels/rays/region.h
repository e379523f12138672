// SPDX-License-Identifier: Apache-2.0
//
// Regions of 8 x 8 x 8 voxels: their keys, and a set of keys whose layout depends only on the keys.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/entry.h"

namespace torchvox {

inline constexpr int kRegionShift = 3;  // log2 of the voxels per edge
inline constexpr int kRegionVoxels = 512;
inline constexpr int kRegionBits = 21;  // per axis in a key
inline constexpr int64_t kRegionBias = int64_t{1} << (kRegionBits - 1);
// Voxel indices are in [-kVoxelReach, kVoxelReach).
inline constexpr int64_t kVoxelReach = kRegionBias << kRegionShift;
inline constexpr int64_t kRegionKeyEnd = INT64_MAX;  // keys are 0 to 2^63 - 1

// The key of a region: its indices z, y, x from the highest bits down.
TORCHVOX_HD int64_t region_key(const int32_t region[3]) {
  int64_t key = 0;
  for (int axis = 2; axis >= 0; --axis) key = key << kRegionBits | (region[axis] + kRegionBias);
  return key;
}
TORCHVOX_HD int32_t region_of_key(int64_t key, int axis) {
  const int64_t mask = (int64_t{1} << kRegionBits) - 1;
  return static_cast<int32_t>((key >> (axis * kRegionBits) & mask) - kRegionBias);
}
TORCHVOX_HD int64_t region_key_of_voxel(const int32_t voxel[3]) {
  const int32_t region[3] = {voxel[0] >> kRegionShift, voxel[1] >> kRegionShift,
                             voxel[2] >> kRegionShift};
  return region_key(region);
}
TORCHVOX_HD int32_t voxel_in_region(const int32_t voxel[3]) {
  return (voxel[2] & 7) << 6 | (voxel[1] & 7) << 3 | (voxel[0] & 7);
}
// The index on one axis of voxel i of a region.
TORCHVOX_HD int32_t voxel_of(int64_t key, int32_t i, int axis) {
  return region_of_key(key, axis) * 8 + (i >> (3 * axis) & 7);
}

// The finalizer of MurmurHash3.
TORCHVOX_HD uint64_t mix_key(uint64_t key) {
  key ^= key >> 33;
  key *= 0xff51afd7ed558ccdu;
  key ^= key >> 33;
  key *= 0xc4ceb9fe1a85ec53u;
  return key ^ key >> 33;
}

inline int64_t power_of_two_from(int64_t least) {
  int64_t size = 1;
  while (size < least) size *= 2;
  return size;
}

// A table of values for the regions of a box, if the box is small enough.
struct RegionBox {
  static constexpr int kWords = 6;

  // Words whose maximum over all keys bounds the box: index + 1 and 2^21 - index on each axis, both
  // counted from 0; 0 without keys.
  static TORCHVOX_HD uint32_t bound(int64_t key, int word) {
    const auto field = static_cast<uint32_t>(region_of_key(key, word % 3) + kRegionBias);
    return word < 3 ? field + 1 : (uint32_t{1} << kRegionBits) - field;
  }

  uint32_t* values = nullptr;  // null: the box is too large
  int32_t lower[3];
  uint32_t row, plane;  // regions per row and per plane

  TORCHVOX_HD RegionBox(const uint32_t bounds[kWords], uint32_t* memory, int64_t most) {
    uint32_t size[3];
    int64_t volume = 1;
    for (int axis = 0; axis < 3; ++axis) {
      const uint32_t low = (uint32_t{1} << kRegionBits) - bounds[axis + 3];
      lower[axis] = static_cast<int32_t>(low - kRegionBias);
      size[axis] = bounds[axis] - low;
      volume = volume > most ? volume : volume * size[axis];
    }
    if (volume <= most) values = memory;
    row = values ? size[0] : kOdd;
    plane = values ? size[0] * size[1] : kOdd * kOdd;
  }
  // The place of a region of the box in `values`; without a table, a number that differs from those
  // of its neighbors.
  TORCHVOX_HD uint32_t place(int32_t x, int32_t y, int32_t z) const {
    return static_cast<uint32_t>(z - lower[2]) * plane + static_cast<uint32_t>(y - lower[1]) * row +
        static_cast<uint32_t>(x - lower[0]);
  }
  TORCHVOX_HD uint32_t place_of_voxel(const int32_t voxel[3]) const {
    return place(voxel[0] >> kRegionShift, voxel[1] >> kRegionShift, voxel[2] >> kRegionShift);
  }

 private:
  static constexpr uint32_t kOdd = 0x9e3779b1;
};

// A set of keys with linear probing in which the lower key keeps its place, so that the layout
// depends on the keys and not on the order in which they came (Blelloch and Golovin 2007).
struct RegionSet {
  static constexpr uint64_t kEmpty = ~uint64_t{0};

  uint64_t* keys = nullptr;  // [size]: keys, or kEmpty
  uint32_t* full = nullptr;  // becomes 1 when there is no place for a key
  int64_t size = 0;  // a power of two

  RegionSet() = default;
  RegionSet(int64_t most_keys, Workspace& workspace) : size(size_for(most_keys)) {
    keys = workspace.take<uint64_t>(size);
    full = workspace.take<uint32_t>(1);
  }
  static int64_t size_for(int64_t keys) { return power_of_two_from(2 * keys + 2); }
  // The most keys that the set may hold, so that searches end soon.
  TORCHVOX_HD int64_t limit() const { return size - size / 8; }

  TORCHVOX_HD void insert(int64_t key_in) const {
    uint64_t key = static_cast<uint64_t>(key_in);
    int64_t at = static_cast<int64_t>(mix_key(key)) & (size - 1);
    for (int64_t probes = 0; probes < size; ++probes, at = (at + 1) & (size - 1)) {
      uint64_t here = load_any(&keys[at]);  // keys only get lower, so an old value is as good
      if (here == key) return;
      if (here > key) {
        here = atomic_min(&keys[at], key);
        if (here == kEmpty || here == key) return;
        if (here > key) key = here;  // goes on with the key whose place was taken
      }
      if (probes % 64 == 63 && load_relaxed(full)) return;
    }
    store_relaxed(full, 1u);
  }

  // The place of a key, or -1.
  TORCHVOX_HD int64_t find(int64_t key_in) const {
    const uint64_t key = static_cast<uint64_t>(key_in);
    int64_t at = static_cast<int64_t>(mix_key(key)) & (size - 1);
    for (int64_t probes = 0; probes < size; ++probes, at = (at + 1) & (size - 1)) {
      if (keys[at] == key) return at;
      if (keys[at] > key) return -1;  // it would have taken this place
    }
    return -1;
  }
};

}  // namespace torchvox
