// SPDX-License-Identifier: Apache-2.0
//
// A table from keys to (smallest point index, number of points), filled by many threads at once. A
// voxel's smallest point index does not depend on the order of execution, so neither does anything
// derived from it.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox {

enum class VoxelTableKind { kDense, kHash, kWideHash };

inline constexpr uint32_t kNone32 = 0xffffffffu;
inline constexpr uint64_t kNone64 = ~uint64_t{0};

// The table starts with every byte 0xff, which means no key, index 2^32 - 1 and count -1.
struct VoxelTable {
  // {first, count}, a cell of the dense table; after give_id(): {id, first place in perm}.
  struct alignas(8) Entry {
    uint32_t first, count;
  };
  // Key and count share one word, (key << index_bits | count), so that one atomic claims a slot and
  // counts.
  struct alignas(16) HashSlot {
    uint64_t word;
    uint32_t first, spare;
  };
  // For keys that do not fit into one word with a count.
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

  // The table for `points` points and `keys` possible keys: dense where that is no larger than the
  // hash table (or so small that clearing it takes no measurable time).
  static VoxelTable choose(uint64_t keys, int64_t points) {
    VoxelTable table;
    table.index_bits = bits_for(static_cast<uint64_t>(points));
    // Up to 65,536 points four slots per point, which keep searches short; above, half as many
    // slots again as there can be voxels, because there clearing takes longer than searches.
    const uint64_t few = points < 16 ? 16 : static_cast<uint64_t>(points);
    const uint64_t groups = points <= (1 << 16) ? few : (3 * few + 7) / 8;
    const uint64_t hash_slots = kGroup * groups;
    const bool fits_word = bits_for(keys) + table.index_bits <= 63;
    const uint64_t cheap = points < (1 << 14) ? static_cast<uint64_t>(points) << 6 : 1u << 20;
    const uint64_t dense_limit = hash_slots * 2 > cheap ? hash_slots * 2 : cheap;
    const int64_t forced = voxel_table_plan.value();
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

  // The result of adding points.
  struct Insertion {
    uint32_t slot;
    uint32_t before;  // how many points of the voxel were in the table
    bool lowest;  // whether no smaller index was there: it may be the voxel's first
  };
  // Adds `n` points, the smallest of which is `index`. Most points come after their voxel's first
  // one and need no atomic minimum.
  __device__ __forceinline__ Insertion insert(uint64_t key, uint32_t index, uint32_t n) const {
    if (kind == VoxelTableKind::kHash) return insert_hash(key, index, n);
    uint64_t s = key;
    Entry* entry = dense() + key;
    if (kind == VoxelTableKind::kWideHash) {
      s = insert_wide(key);
      entry = &wide()[s].entry;
    }
    // One atomic counts and returns the smallest index so far.
    const uint64_t old = atomic_add(reinterpret_cast<uint64_t*>(entry), uint64_t{n} << 32);
    const bool lowest = static_cast<uint32_t>(old) > index;
    if (lowest) atomic_min(&entry->first, index);
    return {static_cast<uint32_t>(s), static_cast<uint32_t>(old >> 32) + 1, lowest};
  }

  // The same where nearly all keys are new and all threads insert at once: reading a slot before
  // the first attempt would only add a trip to memory. All threads wait for the longest search, so
  // a search tries slots far apart, which keeps it short. Do not use it with insert() on one table.
  template <class Key>
  __device__ __forceinline__ uint32_t insert_new(Key key, uint32_t index, uint32_t n,
                                                 uint32_t* before) const {
    if (kind != VoxelTableKind::kHash) {
      const Insertion added = insert(key, index, n);
      *before = added.before;
      return added.slot;
    }
    constexpr int kJumps = 8;  // then neighboring slots, so that the search ends
    const uint64_t begin = uint64_t{key} << index_bits;
    const uint32_t end = static_cast<uint32_t>(slots);
    uint32_t hash_bits = mix(static_cast<uint32_t>(key));
    if (sizeof(Key) > sizeof(uint32_t))
      hash_bits = mix(hash_bits ^ static_cast<uint32_t>(uint64_t{key} >> 32));
    uint32_t s = __umulhi(hash_bits, end);
    uint64_t seen;  // used only after the search, so that no lane delays the others
#pragma unroll 1
    for (int attempt = 1;; ++attempt) {
      uint64_t* const word = &hash()[s].word;
      seen = atomic_cas(word, kNone64, begin | (n - 1));
      if (seen == kNone64) break;
      if (seen >> index_bits == key) {
        seen = atomic_add(word, uint64_t{n});
        break;
      }
      if (attempt < kJumps) {
        hash_bits = mix(hash_bits);
        s = __umulhi(hash_bits, end);
      } else {
        s = s + 1 == end ? 0 : s + 1;
      }
    }
    atomic_min(&hash()[s].first, index);
    *before = seen == kNone64 ? 0 : count_of(seen) + 1;
    return s;
  }

  // The slot at which the search for a key begins.
  __device__ __forceinline__ uint64_t home(uint64_t key) const {
    uint64_t h = key;
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdull;
    h ^= h >> 33;
    h *= 0xc4ceb9fe1a85ec53ull;
    h ^= h >> 33;
    return ((h >> 32) * slots) >> 32;
  }
  __device__ __forceinline__ static uint32_t mix(uint32_t h) {
    h = (h ^ h >> 16) * 0x9e3779b1u + 0x7f4a7c15u;
    return (h ^ h >> 15) * 0x85ebca77u;
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
  // Replaces the smallest index by the voxel's id and the count by its first place in perm. Other
  // threads may still compare their index with the smallest: an id never exceeds that index.
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
  // Slots of a group. A search tries the home of a key, then the rest of its group with one trip to
  // memory, then whole groups, so nearly no search needs more than two dependent loads.
  static constexpr uint64_t kGroup = 4;

  // Tries the home first: nearly every key is there, or finds it empty.
  __device__ __forceinline__ Insertion insert_hash(uint64_t key, uint32_t index, uint32_t n) const {
    uint64_t s = home(key);
    HashSlot seen = load_slot(hash() + s);
    uint32_t before;
    if (!add_at(s, key, n, seen.word, &before)) {
      uint64_t group = s & ~(kGroup - 1);
      for (;;) {
        seen = first_fit(group, key, &s);
        if (add_at(s, key, n, seen.word, &before)) break;
        // Another thread claimed the slot for another key, or the group is full.
        if (s == group + kGroup - 1) group = group + kGroup == slots ? 0 : group + kGroup;
      }
    }
    const bool lowest = seen.first > index;
    if (lowest) atomic_min(&hash()[s].first, index);
    return {static_cast<uint32_t>(s), before, lowest};
  }
  // Claims a slot whose word was `seen`, or counts in it; false if it has another key.
  __device__ __forceinline__ bool add_at(uint64_t s, uint64_t key, uint32_t n, uint64_t seen,
                                         uint32_t* before) const {
    uint64_t* const word = &hash()[s].word;
    *before = 0;
    if (seen == kNone64) {
      seen = atomic_cas(word, kNone64, key << index_bits | (n - 1));
      if (seen == kNone64) return true;
    }
    if (seen >> index_bits != key) return false;
    *before = count_of(atomic_add(word, uint64_t{n})) + 1;
    return true;
  }
  __device__ __forceinline__ uint64_t insert_wide(uint64_t key) const {
    for (uint64_t s = home(key);; s = s + 1 == slots ? 0 : s + 1) {
      uint64_t* const address = &wide()[s].key;
      uint64_t old = load_relaxed(address);
      if (old == kNone64) old = atomic_cas(address, kNone64, key);
      if (old == kNone64 || old == key) return s;
    }
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
  // Its two parts need not be consistent: `first` may be older or newer than `word`.
  __device__ __forceinline__ static HashSlot load_slot(const HashSlot* address) {
    const ulonglong2 both = __ldcg(reinterpret_cast<const ulonglong2*>(address));
    return {both.x, static_cast<uint32_t>(both.y), 0};
  }
  __device__ __forceinline__ uint32_t count_of(uint64_t word) const {
    return static_cast<uint32_t>(word & ((uint64_t{1} << index_bits) - 1));
  }
  __device__ __forceinline__ static Entry load_entry(const Entry* address) {
    const uint64_t both = load_relaxed(reinterpret_cast<const uint64_t*>(address));
    return {static_cast<uint32_t>(both), static_cast<uint32_t>(both >> 32)};
  }
};

}  // namespace torchvox
