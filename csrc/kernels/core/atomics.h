// SPDX-License-Identifier: Apache-2.0
//
// Relaxed integer atomics, spelled alike on host and device. No result may depend on the order in
// which they happen.
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

// Raises *address to `value`. True for the one call that raised it from 0. The plain load avoids
// the atomic when the value is already as high.
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

// Adds modulo 2^32 or 2^64; returns the previous value.
template <class T>
TORCHVOX_HD T atomic_add(T* address, T value) {
#ifdef __CUDA_ARCH__
  using Native = typename CudaAtomicType<T>::type;
  return static_cast<T>(atomicAdd(reinterpret_cast<Native*>(address), static_cast<Native>(value)));
#else
  return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
#endif
}

// Lowers *address to `value`; returns the previous value.
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

// Compare and swap: writes `desired` and returns true if *address is *expected; otherwise sets
// *expected to what is there, which then differs: no processor fails by chance here.
template <class T>
TORCHVOX_HD bool atomic_replace(T* address, T* expected, T desired) {
#ifdef __CUDA_ARCH__
  using Native = typename CudaAtomicType<T>::type;
  const T before = *expected;
  *expected = static_cast<T>(atomicCAS(reinterpret_cast<Native*>(address),
                                       static_cast<Native>(before), static_cast<Native>(desired)));
  return *expected == before;
#else
  return __atomic_compare_exchange_n(address, expected, desired, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED);
#endif
}

// A value that other threads change. Any cache may serve it, so it may be an old one.
template <class T>
TORCHVOX_HD T load_any(const T* address) {
#ifdef __CUDA_ARCH__
  return *address;
#else
  return __atomic_load_n(address, __ATOMIC_RELAXED);
#endif
}

// Loads and stores that are not torn by the atomics of other threads and bypass this thread's
// caches.
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

// Sets bits of *address, of 32 or 64; the plain load avoids the atomic when all are set.
template <class T>
TORCHVOX_HD void atomic_set_bits(T* address, T bits) {
#ifdef __CUDA_ARCH__
  using Native = typename CudaAtomicType<T>::type;
  if ((*const_cast<volatile const T*>(address) & bits) != bits) {
    atomicOr(reinterpret_cast<Native*>(address), static_cast<Native>(bits));
  }
#else
  if ((__atomic_load_n(address, __ATOMIC_RELAXED) & bits) != bits) {
    __atomic_fetch_or(address, bits, __ATOMIC_RELAXED);
  }
#endif
}

#ifdef __CUDACC__
// Compare and swap; returns the previous value.
__device__ __forceinline__ uint64_t atomic_cas(uint64_t* address, uint64_t expected,
                                               uint64_t desired) {
  return atomicCAS(reinterpret_cast<unsigned long long*>(address),
                   static_cast<unsigned long long>(expected),
                   static_cast<unsigned long long>(desired));
}

#endif

}  // namespace torchvox
