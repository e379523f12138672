// SPDX-License-Identifier: Apache-2.0
//
// The instruction set that a host kernel runs with, chosen at run time.
#pragma once

#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

// Which of a function's variants runs on the host: 0 baseline, 1 AVX2 and FMA, 2 AVX-512. The
// widest that the processor has, or as much of it as a test forces through `plan`.
inline int instruction_set(Plan plan) {
#if defined(__x86_64__) && defined(__GNUC__)
  const int64_t forced = plan_override(plan);
  const int64_t most = forced == kAutomatic ? 2 : forced;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  if (avx512 && most >= 2) return 2;
  return avx2 && most >= 1 ? 1 : 0;
#else
  (void)plan;
  return 0;
#endif
}

}  // namespace torchvox
