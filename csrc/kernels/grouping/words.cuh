// SPDX-License-Identifier: Apache-2.0
//
// 16 bytes of features, moved by one instruction.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/core/arith.h"

namespace torchvox {

template <class T>
struct alignas(16) Word {
  static constexpr int kWidth = 16 / sizeof(T);
  uint4 bits;

  __device__ T item(int i) const {
    T items[kWidth];
    memcpy(items, &bits, sizeof(bits));
    return items[i];
  }
  __device__ void set(int i, T value) {
    memcpy(reinterpret_cast<char*>(&bits) + i * sizeof(T), &value, sizeof(T));
  }
};

// Streaming: what is read or written once leaves the caches first.
template <class T>
__device__ __forceinline__ Word<T> load_once(const Word<T>* from) {
  return {__ldcs(&from->bits)};
}
template <class T>
__device__ __forceinline__ void store_once(Word<T>* to, const Word<T>& word) {
  __stcs(&to->bits, word.bits);
}

inline bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

}  // namespace torchvox
