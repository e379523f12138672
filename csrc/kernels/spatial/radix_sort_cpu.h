// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

namespace torchvox {

// Sorts stably, on the host, by the low `key_bits` bits of the unsigned `key` of an Item. The
// result is in `items` or in `other`, which both have room for `count`: returned is which.
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

}  // namespace torchvox
