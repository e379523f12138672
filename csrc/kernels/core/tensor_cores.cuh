// SPDX-License-Identifier: Apache-2.0
//
// Matrix products of a warp on the tensor cores (PTX mma.sync m16n8k16), and how their operands get
// into shared memory and from there into registers. For sm_80 and later.
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/core/arith.h"

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800

namespace torchvox {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
// Begins to copy 16 bytes, or to write zeros.
__device__ __forceinline__ void copy_or_clear(uint32_t to, const void* from, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(copies ? 16 : 0)
               : "memory");
}
// Four matrices of 8 by 8 halves; lane 8 * i + j has the address of line j of matrix i.
__device__ __forceinline__ void load_matrices(uint32_t (&words)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

// The same, each transposed.
__device__ __forceinline__ void load_transposed(uint32_t (&words)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
}

template <class T>
struct Words;  // two values of T in a word, the first in the low half

template <>
struct Words<BFloat16> {
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
  static __device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
    uint32_t word;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  }
  static __device__ __forceinline__ float low(uint32_t word) { return bit_cast<float>(word << 16); }
  static __device__ __forceinline__ float high(uint32_t word) {
    return bit_cast<float>(word & 0xffff0000u);
  }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t* a, uint32_t b0,
                                                  uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Words<Half> {
  static __device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
  }
  static __device__ __forceinline__ uint32_t max2(uint32_t a, uint32_t b) {
    uint32_t word;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
  }
  static __device__ __forceinline__ float low(uint32_t word) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(word)));
    return x;
  }
  static __device__ __forceinline__ float high(uint32_t word) { return low(word >> 16); }
  static __device__ __forceinline__ void multiply(float (&d)[4], const uint32_t* a, uint32_t b0,
                                                  uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

}  // namespace torchvox

#endif
