// SPDX-License-Identifier: Apache-2.0
//
// A few neighboring channels of a row: Items as they are in memory, one access of up to 16 bytes;
// Channels the numbers that are added up in registers. Stores pass quiet(), so the bits of NaNs do
// not matter before.
#pragma once

#include "csrc/kernels/core/arith.h"

namespace torchvox {

template <class Number, int kWidth>
struct Channels {
  Number at[kWidth] = {};

  TORCHVOX_HD Channels& operator+=(const Channels& other) {
    for (int i = 0; i < kWidth; ++i) at[i] += other.at[i];
    return *this;
  }
  TORCHVOX_HD Channels operator+(const Channels& other) const { return Channels(*this) += other; }
  TORCHVOX_HD void scale(Number factor) {
    for (int i = 0; i < kWidth; ++i) at[i] = factor * at[i];
  }
};

template <class T>
inline constexpr int kItemsPerWord = 16 / static_cast<int>(sizeof(T));

template <class T>
TORCHVOX_HD compute_t<T> widen_item(T x) {
  return widen(x);
}
template <>
TORCHVOX_HD float widen_item(Half x) {
#ifdef __CUDA_ARCH__
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
  return wide;
#else
  return widen(x);
#endif
}

// narrow<T>(quiet(x)); for halves by one instruction on the device.
template <class T>
TORCHVOX_HD T narrow_item(compute_t<T> x) {
  return narrow<T>(quiet(x));
}
template <>
TORCHVOX_HD Half narrow_item(float x) {
#ifdef __CUDA_ARCH__
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {is_nan(x) ? uint16_t{0x7e00} : bits};
#else
  return narrow<Half>(quiet(x));
#endif
}

// Values as in memory, so that a load does not wait for a conversion.
template <class T, int kWidth>
struct Items {
  T item[kWidth];

  TORCHVOX_HD Channels<compute_t<T>, kWidth> widened() const {
    Channels<compute_t<T>, kWidth> channels;
    for (int i = 0; i < kWidth; ++i) channels.at[i] = widen_item(item[i]);
    return channels;
  }
};

// `from` is aligned to the items together.
template <class T, int kWidth>
TORCHVOX_HD Items<T, kWidth> read_items(const T* from) {
  Items<T, kWidth> items;
#ifdef __CUDA_ARCH__
  if constexpr (kWidth * sizeof(T) == 16) {
    const uint4 word = __ldg(reinterpret_cast<const uint4*>(from));
    memcpy(items.item, &word, sizeof(word));
  } else
#endif
  {
    for (int i = 0; i < kWidth; ++i) items.item[i] = from[i];
  }
  return items;
}
template <class T, int kWidth>
TORCHVOX_HD Channels<compute_t<T>, kWidth> load_items(const T* from) {
  return read_items<T, kWidth>(from).widened();
}

template <class T, int kWidth>
TORCHVOX_HD void store_items(T* to, const Channels<compute_t<T>, kWidth>& channels) {
  T items[kWidth];
  for (int i = 0; i < kWidth; ++i) items[i] = narrow_item<T>(channels.at[i]);
#ifdef __CUDA_ARCH__
  if constexpr (kWidth * sizeof(T) == 16) {
    uint4 word;
    memcpy(&word, items, sizeof(word));
    *reinterpret_cast<uint4*>(to) = word;
  } else
#endif
  {
    for (int i = 0; i < kWidth; ++i) to[i] = items[i];
  }
}

TORCHVOX_HD bool is_aligned(const void* data) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0;
}

}  // namespace torchvox
