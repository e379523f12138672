// SPDX-License-Identifier: Apache-2.0
//
// Relaxed integer atomics, with one spelling on host and device. What is built on them must not
// depend on their order.
#pragma once

#include "csrc/kernels/core/arith.h"

namespace torchvox {

#ifdef __CUDACC__
template <class T>
struct CudaAtomicType {
  using type = unsigned int;
};
template <>
struct CudaAtomicType<uint64_t> {
  using type = unsigned long long;
};
#endif

// Raises *address to `value`. True for the one call that raised it from 0. The plain load first
// spares the atomic whenever the present value is already as high.
template <class T>
TORCHVOX_HD bool atomic_raise(T* address, T value) {
#ifdef __CUDA_ARCH__
  using Native = typename CudaAtomicType<T>::type;
  if (*const_cast<volatile const T*>(address) >= value) return false;
  return atomicMax(reinterpret_cast<Native*>(address), static_cast<Native>(value)) == 0;
#else
  T old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (old < value) {
    if (__atomic_compare_exchange_n(address, &old, value, true, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED)) {
      return old == 0;
    }
  }
  return false;
#endif
}

// Adds, modulo 2^32 or 2^64, and gives the value before.
template <class T>
TORCHVOX_HD T atomic_add(T* address, T value) {
#ifdef __CUDA_ARCH__
  using Native = typename CudaAtomicType<T>::type;
  return static_cast<T>(atomicAdd(reinterpret_cast<Native*>(address), static_cast<Native>(value)));
#else
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
#endif
}

// Lowers *address to `value` and gives the value before.
template <class T>
TORCHVOX_HD T atomic_min(T* address, T value) {
#ifdef __CUDA_ARCH__
  using Native = typename CudaAtomicType<T>::type;
  return static_cast<T>(atomicMin(reinterpret_cast<Native*>(address), static_cast<Native>(value)));
#else
  T old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (old > value &&
         !__atomic_compare_exchange_n(address, &old, value, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
  return old;
#endif
}

// Raises *address to `value`.
TORCHVOX_HD void atomic_max(int32_t* address, int32_t value) {
#ifdef __CUDA_ARCH__
  atomicMax(address, value);
#else
  int32_t old = __atomic_load_n(address, __ATOMIC_RELAXED);
  while (old < value &&
         !__atomic_compare_exchange_n(address, &old, value, true, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED)) {
  }
#endif
}

// Writes `desired` where *expected stands; else tells in *expected what does.
template <class T>
TORCHVOX_HD bool atomic_replace(T* address, T* expected, T desired) {
#ifdef __CUDA_ARCH__
  using Native = typename CudaAtomicType<T>::type;
  const T before = *expected;
  *expected = static_cast<T>(atomicCAS(reinterpret_cast<Native*>(address),
                                       static_cast<Native>(before), static_cast<Native>(desired)));
  return *expected == before;
#else
  return __atomic_compare_exchange_n(address, expected, desired, true, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
#endif
}

// A value that other threads change, maybe an old one: from any cache.
template <class T>
TORCHVOX_HD T load_any(const T* address) {
#ifdef __CUDA_ARCH__
  return *address;
#else
  return __atomic_load_n(address, __ATOMIC_RELAXED);
#endif
}

// Loads and stores that other threads' atomics do not tear and that no cache of this thread serves.
template <class T>
TORCHVOX_HD T load_relaxed(const T* address) {
#ifdef __CUDA_ARCH__
  return *static_cast<const volatile T*>(address);
#else
  return __atomic_load_n(address, __ATOMIC_RELAXED);
#endif
}
template <class T>
TORCHVOX_HD void store_relaxed(T* address, T value) {
#ifdef __CUDA_ARCH__
  *static_cast<volatile T*>(address) = value;
#else
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
#endif
}

TORCHVOX_HD void atomic_set_bits(uint32_t* address, uint32_t bits) {
#ifdef __CUDA_ARCH__
  if ((*const_cast<volatile const uint32_t*>(address) & bits) != bits) atomicOr(address, bits);
#else
  __atomic_fetch_or(address, bits, __ATOMIC_RELAXED);
#endif
}

#ifdef __CUDACC__
// Writes `desired` where `expected` stands; returns what stood there.
__device__ __forceinline__ uint64_t atomic_cas(uint64_t* address, uint64_t expected,
                                               uint64_t desired) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(address),
                   static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(desired));
}

#endif

}  // namespace torchvox
