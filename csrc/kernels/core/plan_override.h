// SPDX-License-Identifier: Apache-2.0
//
// Launch decisions that tests may force, process-wide. No value changes a result, where no other is
// said: that is what the tests prove with them. Each stands with the op whose decision it is.
#pragma once

#include <atomic>
#include <string>

#include "csrc/kernels/core/target.h"

namespace torchvox {

inline constexpr int64_t kAutomatic = -1;

class PlanOverride {
 public:
  // Overrides of one name share one value, whichever library they are compiled into.
  TORCHVOX_EXPORT explicit PlanOverride(const char* name);

  // kAutomatic where nothing is forced.
  int64_t value() const { return value_->load(std::memory_order_relaxed); }

 private:
  const std::atomic<int64_t>* value_;
};

// False when no override has this name.
TORCHVOX_EXPORT bool set_plan_override(const std::string& name, int64_t value);

// body(), compiled with all that it calls for three instruction sets: baseline, AVX2 with FMA and
// AVX-512. The widest that the processor has runs, or as much of it as a test forces: 0, 1 or 2.
// Without FMA every fma is a call of libm, with the same bits.
#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__  // which has no such option of a function
#define TORCHVOX_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#else
#define TORCHVOX_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"
#endif
template <class Body>
__attribute__((target("avx2,fma"), flatten)) void run_avx2(const Body& body) {
  body();
}
template <class Body>
__attribute__((target(TORCHVOX_AVX512), flatten)) void run_avx512(const Body& body) {
  body();
}
template <class Body>
void run_vectorized(const PlanOverride& plan, const Body& body) {
  const int64_t most = plan.value() == kAutomatic ? 2 : plan.value();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  if (avx512 && most >= 2) return run_avx512(body);
  if (avx2 && most >= 1) return run_avx2(body);
  body();
}
#else
template <class Body>
void run_vectorized(const PlanOverride&, const Body& body) {
  body();
}
#endif

}  // namespace torchvox
