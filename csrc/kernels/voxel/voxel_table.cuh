// SPDX-License-Identifier: Apache-2.0
//
// Key -> (smallest point index, number of points), filled by many threads at once. A voxel's
// smallest point index does not depend on the order of execution, so neither does anything derived
// from it.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/atomics.cuh"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/voxel/voxel_grid.h"

namespace torchvox {

enum class VoxelTableKind { kDense, kHash, kWideHash };

inline constexpr uint32_t kNone32 = 0xffffffffu;
inline constexpr uint64_t kNone64 = ~uint64_t{0};

// The table starts with every byte 0xff: no key, index 2^32 - 1, count -1.
struct VoxelTable {
  // {first, count}: a cell of the dense table. After the ids are given out: {id, first place in
  // perm}.
  struct alignas(8) Entry {
    uint32_t first;
    uint32_t count;
  };
  // Key and count share one word, (key << index_bits | count), so that one atomic claims a slot and
  // counts.
  struct alignas(16) HashSlot {
    uint64_t word;
    uint32_t first;
    uint32_t spare;
  };
  // For keys that are too long for that.
  struct alignas(16) WideSlot {
    uint64_t key;
    Entry entry;
  };

  VoxelTableKind kind = VoxelTableKind::kDense;
  int index_bits = 0;
  uint64_t slots = 0;
  void* data = nullptr;

  __device__ __forceinline__ Entry* dense() const { return static_cast<Entry*>(data); }
  __device__ __forceinline__ HashSlot* hash() const { return static_cast<HashSlot*>(data); }
  __device__ __forceinline__ WideSlot* wide() const { return static_cast<WideSlot*>(data); }

  int64_t bytes() const {
    const int64_t slot_bytes = kind == VoxelTableKind::kDense ? 8 : 16;
    return static_cast<int64_t>(slots) * slot_bytes;
  }

  // The table of `points` points over `keys` possible keys: dense where that is no larger than the
  // hash (or small enough to clear for nothing).
  static VoxelTable choose(uint64_t keys, int64_t points) {
    VoxelTable table;
    table.index_bits = bits_for(static_cast<uint64_t>(points));
    const uint64_t groups = points < 16 ? 8 : (static_cast<uint64_t>(points) + 1) / 2;
    const uint64_t hash_slots = kGroup * groups;
    const bool fits_word = bits_for(keys) + table.index_bits <= 63;
    const uint64_t dense_limit = hash_slots * 2 > (1u << 20) ? hash_slots * 2 : (1u << 20);
    const int64_t forced = plan_override(Plan::kVoxelTable);
    bool dense = keys <= dense_limit;
    if (forced == 0) dense = keys <= (uint64_t{1} << 28);
    if (forced == 1 || forced == 2) dense = false;
    dense = dense && keys < kNone32;
    if (dense) {
      table.kind = VoxelTableKind::kDense;
      table.slots = keys;
    } else {
      table.kind = fits_word && forced != 2 ? VoxelTableKind::kHash : VoxelTableKind::kWideHash;
      table.slots = hash_slots;
    }
    return table;
  }

  // Points of one voxel on their way into the table. A step ends with one trip to memory, so the
  // trips of several insertions overlap when each step is taken for all of them.
  struct Insertion {
    uint32_t slot;
    uint32_t before;  // how many points of the voxel came before
    bool lowest;  // no smaller index was there: it may be the voxel's first
    HashSlot seen;
    uint64_t old;
  };
  __device__ __forceinline__ void look(uint64_t key, Insertion* one) const {
    if (kind == VoxelTableKind::kDense) return;
    one->slot = static_cast<uint32_t>(home(key));
    if (kind == VoxelTableKind::kHash) one->seen = load_slot(hash() + one->slot);
  }
  // Counts where the voxel has a slot already.
  __device__ __forceinline__ void count(uint64_t key, uint32_t n, Insertion* one) const {
    if (kind == VoxelTableKind::kDense) {
      one->slot = static_cast<uint32_t>(key);
      one->old = count_in(&dense()[key], n);
    } else if (kind == VoxelTableKind::kHash && one->seen.word >> index_bits == key) {
      one->old = atomic_add(&hash()[one->slot].word, uint64_t{n});
    }
  }
  // Most points come after their voxel's first one and need no atomic minimum.
  __device__ __forceinline__ void settle(uint64_t key, uint32_t index, uint32_t n,
                                         Insertion* one) const {
    Entry* entry;
    if (kind == VoxelTableKind::kHash) {
      if (one->seen.word >> index_bits == key) {
        one->before = count_of(one->old) + 1;
      } else {
        insert_hash(key, n, one);
      }
      one->lowest = one->seen.first > index;
      if (one->lowest) atomic_lower(&hash()[one->slot].first, index);
      return;
    }
    if (kind == VoxelTableKind::kDense) {
      entry = &dense()[key];
    } else {
      entry = &insert_wide(key, one)->entry;
      one->old = count_in(entry, n);
    }
    one->before = static_cast<uint32_t>(one->old >> 32) + 1;
    one->lowest = static_cast<uint32_t>(one->old) > index;
    if (one->lowest) atomic_lower(&entry->first, index);
  }

  // Adds `n` points, the smallest of which is `index`. Returns the voxel's slot, and how many of
  // its points were added before.
  __device__ __forceinline__ uint32_t insert(uint64_t key, uint32_t index, uint32_t n,
                                             uint32_t* before) const {
    Insertion one;
    look(key, &one);
    count(key, n, &one);
    settle(key, index, n, &one);
    *before = one.before;
    return one.slot;
  }

  // Where the search for a key begins.
  __device__ __forceinline__ uint64_t home(uint64_t key) const {
    uint64_t h = key;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    h ^= h >> 33;
    return ((h >> 32) * slots) >> 32;
  }

  // The entry of a slot and its key; `count` is one less than the number of points until give_id().
  __device__ __forceinline__ Entry entry(uint32_t slot, uint64_t* key) const {
    if (kind == VoxelTableKind::kDense) {
      *key = slot;
      return load_entry(&dense()[slot]);
    }
    if (kind == VoxelTableKind::kWideHash) {
      *key = load_relaxed(&wide()[slot].key);
      return load_entry(&wide()[slot].entry);
    }
    const HashSlot both = load_slot(&hash()[slot]);
    *key = both.word >> index_bits;
    return {both.first, count_of(both.word)};
  }
  // Replaces the smallest index by the voxel's id and the count by its first place in perm. Safe
  // while other threads still ask "is my index the smallest": an id never exceeds that index.
  __device__ __forceinline__ void give_id(uint32_t slot, uint64_t key, uint32_t id,
                                          uint32_t place) const {
    if (kind == VoxelTableKind::kHash) {
      store_relaxed(&hash()[slot].first, id);
      store_relaxed(&hash()[slot].word, key << index_bits | place);
      return;
    }
    Entry* const entry = kind == VoxelTableKind::kDense ? &dense()[slot] : &wide()[slot].entry;
    store_relaxed(reinterpret_cast<uint64_t*>(entry), uint64_t{place} << 32 | id);
  }

 private:
  // Slots searched together: first the home of a key, then the rest of its group with one trip to
  // memory, then whole groups. So nearly no search takes more than two dependent loads.
  static constexpr uint64_t kGroup = 4;

  // From the slot on that held `seen` a moment ago.
  __device__ __forceinline__ void insert_hash(uint64_t key, uint32_t n, Insertion* one) const {
    uint64_t s = one->slot;
    HashSlot seen = one->seen;
    uint64_t group = s & ~(kGroup - 1);
    for (bool searched = false;;) {
      const bool empty = seen.word == kNone64;
      if (empty || seen.word >> index_bits == key) {
        uint64_t* const word = &hash()[s].word;
        const uint64_t old = empty ? atomic_cas(word, kNone64, key << index_bits | (n - 1))
                                   : atomic_add(word, uint64_t{n});
        if (!empty || old == kNone64) {
          one->before = empty ? 0 : count_of(old) + 1;
          one->slot = static_cast<uint32_t>(s);
          one->seen = seen;
          return;
        }
        if (old >> index_bits == key) {
          seen.word = old;
          continue;
        }
      }
      if (searched && s == group + kGroup - 1) group = group + kGroup == slots ? 0 : group + kGroup;
      seen = first_fit(group, key, &s);
      searched = true;
    }
  }
  __device__ __forceinline__ WideSlot* insert_wide(uint64_t key, Insertion* one) const {
    uint64_t s = one->slot;
    for (;;) {
      uint64_t* address = &wide()[s].key;
      uint64_t old = load_relaxed(address);
      if (old == kNone64) old = atomic_cas(address, kNone64, key);
      if (old == kNone64 || old == key) break;
      s = s + 1 == slots ? 0 : s + 1;
    }
    one->slot = static_cast<uint32_t>(s);
    return &wide()[s];
  }
  // The first slot of a group that is empty or has the key; else its last one.
  __device__ __forceinline__ HashSlot first_fit(uint64_t group, uint64_t key, uint64_t* s) const {
    HashSlot slot[kGroup];
#pragma unroll
    for (uint64_t k = 0; k < kGroup; ++k) slot[k] = load_slot(hash() + group + k);
    HashSlot fit = slot[kGroup - 1];
    *s = group + kGroup - 1;
#pragma unroll
    for (int64_t k = kGroup - 2; k >= 0; --k) {
      if (slot[k].word == kNone64 || slot[k].word >> index_bits == key) {
        fit = slot[k];
        *s = group + static_cast<uint64_t>(k);
      }
    }
    return fit;
  }
  // The two parts need not be of one moment.
  __device__ __forceinline__ static HashSlot load_slot(const HashSlot* address) {
    const ulonglong2 both = __ldcg(reinterpret_cast<const ulonglong2*>(address));
    return {both.x, static_cast<uint32_t>(both.y), 0};
  }
  __device__ __forceinline__ uint32_t count_of(uint64_t word) const {
    return static_cast<uint32_t>(word & ((uint64_t{1} << index_bits) - 1));
  }
  // One atomic counts and shows the smallest index so far.
  __device__ __forceinline__ static uint64_t count_in(Entry* entry, uint32_t n) {
    return atomic_add(reinterpret_cast<uint64_t*>(entry), uint64_t{n} << 32);
  }
  __device__ __forceinline__ static Entry load_entry(const Entry* address) {
    const uint64_t both = load_relaxed(reinterpret_cast<const uint64_t*>(address));
    Entry entry;
    entry.first = static_cast<uint32_t>(both);
    entry.count = static_cast<uint32_t>(both >> 32);
    return entry;
  }
};

}  // namespace torchvox
