// SPDX-License-Identifier: Apache-2.0
//
// Vectors for the bodies of run_vectorized(), where compilers do not find them: sums of products
// that stay in registers. A body that takes one argument gets the instruction set, one of these.
// Vectors are passed by reference, since callers may not know the instructions.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "csrc/kernels/core/arith.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

template <class Real, class Isa>
struct Lanes {
  typedef Real Vector __attribute__((vector_size(Isa::kBytes)));
};

// add_product: to = x * y + to, rounded once, as fma_rn.
struct Baseline {
  static constexpr int kBytes = 16, kRegisters = 16;
  template <class Real, class Vector>
  static void add_product(Real x, const Vector& y, Vector& to) {
#ifdef __aarch64__
    if constexpr (sizeof(Real) == 4) to = vfmaq_n_f32(to, y, x);
    if constexpr (sizeof(Real) == 8) to = vfmaq_n_f64(to, y, x);
#else
    for (size_t i = 0; i < sizeof(Vector) / sizeof(Real); ++i) to[i] = fma_rn(x, y[i], to[i]);
#endif
  }
};

#if defined(__x86_64__) && defined(__GNUC__)
struct Avx2 {
  static constexpr int kBytes = 32, kRegisters = 16;
  template <class Real, class Vector>
  __attribute__((target("avx2,fma"))) static void add_product(Real x, const Vector& y, Vector& to) {
    if constexpr (sizeof(Real) == 4) to = _mm256_fmadd_ps(_mm256_set1_ps(x), y, to);
    if constexpr (sizeof(Real) == 8) to = _mm256_fmadd_pd(_mm256_set1_pd(x), y, to);
  }
};
struct Avx512 {
  static constexpr int kBytes = 64, kRegisters = 32;
  template <class Real, class Vector>
  __attribute__((target(TORCHVOX_AVX512))) static void add_product(Real x, const Vector& y,
                                                                   Vector& to) {
    if constexpr (sizeof(Real) == 4) to = _mm512_fmadd_ps(_mm512_set1_ps(x), y, to);
    if constexpr (sizeof(Real) == 8) to = _mm512_fmadd_pd(_mm512_set1_pd(x), y, to);
  }
};
#endif

}  // namespace torchvox
