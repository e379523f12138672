// SPDX-License-Identifier: Apache-2.0
//
// Launch decisions that tests may force, process-wide. No value changes a result, where no other is
// said: that is what the tests prove with them. Each stands with the op whose decision it is.
#pragma once

#include <atomic>
#include <cstdint>
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

// Which of a function's variants runs on the host: 0 baseline, 1 AVX2 and FMA, 2 AVX-512. The
// widest that the processor has, or as much of it as a test forces.
inline int instruction_set(const PlanOverride& plan) {
#if defined(__x86_64__) && defined(__GNUC__)
  const int64_t most = plan.value() == kAutomatic ? 2 : plan.value();
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
