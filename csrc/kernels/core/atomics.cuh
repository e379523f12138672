// SPDX-License-Identifier: Apache-2.0
//
// Relaxed integer atomics that only kernels need.
#pragma once

#include "csrc/kernels/core/atomics.h"

namespace torchvox {

// Loads and stores that other threads' atomics do not tear and that no cache of this thread serves.
template <class T>
__device__ __forceinline__ T load_relaxed(const T* address) {
  return *static_cast<const volatile T*>(address);
}

template <class T>
__device__ __forceinline__ void store_relaxed(T* address, T value) {
  *static_cast<volatile T*>(address) = value;
}

// Lowers *address to `value`.
template <class T>
__device__ __forceinline__ void atomic_lower(T* address, T value) {
  using Native = typename CudaAtomicType<T>::type;
  atomicMin(reinterpret_cast<Native*>(address), static_cast<Native>(value));
}

// Writes `desired` where `expected` stands; returns what stood there.
__device__ __forceinline__ uint64_t atomic_cas(uint64_t* address, uint64_t expected,
                                               uint64_t desired) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(address),
                   static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(desired));
}

}  // namespace torchvox
