// SPDX-License-Identifier: Apache-2.0
//
// Launch decisions that tests may force, for the whole process. No value changes a result unless
// its comment says so: that is what the tests prove with them. Each is declared with its op.
#pragma once

#include <atomic>
#include <string>
#include <type_traits>

#include "csrc/kernels/core/target.h"

namespace torchvox {

inline constexpr int64_t kAutomatic = -1;

class PlanOverride {
 public:
  // Overrides of one name share one value, whichever library they are compiled into.
  TORCHVOX_EXPORT explicit PlanOverride(const char* name);

  // The forced value, or kAutomatic.
  int64_t value() const { return value_->load(std::memory_order_relaxed); }

 private:
  const std::atomic<int64_t>* value_;
};

// False when no override has this name.
TORCHVOX_EXPORT bool set_plan_override(const std::string& name, int64_t value);

// Runs body(), compiled together with all that it calls for three instruction sets: baseline (0),
// AVX2 with FMA (1) and AVX-512 (2). The widest one that the processor has is used, and at most the
// one that a test forces. Without FMA every fma is a call of libm, with the same bits. A body that
// takes an argument gets a Baseline, Avx2 or Avx512 of lanes.h.
struct Baseline;
struct Avx2;
struct Avx512;
template <class Isa, class Body>
void run_body(const Body& body) {
  if constexpr (std::is_invocable_v<Body>) {
    body();
  } else {
    body(Isa());
  }
}
#if defined(__x86_64__) && defined(__GNUC__)
#ifdef __clang__  // clang cannot set the vector width of a single function
#define TORCHVOX_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#else
#define TORCHVOX_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"
#endif
template <class Body>
__attribute__((target("avx2,fma"), flatten)) void run_avx2(const Body& body) {
  run_body<Avx2>(body);
}
template <class Body>
__attribute__((target(TORCHVOX_AVX512), flatten)) void run_avx512(const Body& body) {
  run_body<Avx512>(body);
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
  run_body<Baseline>(body);
}
#else
template <class Body>
void run_vectorized(const PlanOverride&, const Body& body) {
  run_body<Baseline>(body);
}
#endif

}  // namespace torchvox
