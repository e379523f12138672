// SPDX-License-Identifier: Apache-2.0
//
// Stable radix sorts by an unsigned key: of items on the host, of pairs of words on the GPU.
#pragma once

#include <utility>

#include "csrc/kernels/core/entry.h"

namespace torchvox {

// An item for the radix sort on the host.
struct KeyedIndex {
  uint64_t key;
  uint32_t index;
};

// Sorts stably, on the host, by the low `key_bits` bits of the unsigned `key` of an Item. `items`
// and `other` both have room for `count` items; returns the one with the result.
template <class Item>
Item* radix_sort(Item* items, Item* other, int64_t count, int key_bits) {
  constexpr int kDigitBits = 10;
  for (int shift = 0; shift < key_bits; shift += kDigitBits) {
    uint32_t begins[1 << kDigitBits] = {};
    const auto digit = [shift](const Item& item) {
      return (item.key >> shift) & ((1u << kDigitBits) - 1);
    };
    for (int64_t i = 0; i < count; ++i) ++begins[digit(items[i])];
    uint32_t before = 0;
    for (uint32_t& begin : begins) before += std::exchange(begin, before);
    for (int64_t i = 0; i < count; ++i) other[begins[digit(items[i])]++] = items[i];
    std::swap(items, other);
  }
  return items;
}

// The fewest bits that hold every key below `values`; 0 for one value.
inline int key_bits(int64_t values) {
  int bits = 0;
  while ((int64_t{1} << bits) < values) ++bits;
  return bits;
}

#ifdef TORCHVOX_CUDA
// Keys and values in two buffers each; a sort leaves its result in `keys[current]`,
// `values[current]`.
struct SortBuffers {
  uint32_t* keys[2];
  uint32_t* values[2];
  int current = 0;
  void* temporary;
  int64_t temporary_bytes = 0;  // for the current device

  SortBuffers(int64_t count, Workspace& workspace);
};

// Sorts `count` pairs by the low `bits` bits of their keys, ascending; equal keys keep their order.
cudaError_t radix_sort(SortBuffers& buffers, int64_t count, int bits, cudaStream_t stream);

#endif

}  // namespace torchvox
