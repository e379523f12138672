// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/plan_override.h"

#include <array>
#include <atomic>

namespace torchvox {
namespace {

constexpr int kPlans = static_cast<int>(Plan::kCount);

std::array<std::atomic<int64_t>, kPlans>& overrides() {
  static std::array<std::atomic<int64_t>, kPlans> values = [] {
    std::array<std::atomic<int64_t>, kPlans> initial;
    for (auto& value : initial) value.store(kAutomatic);
    return initial;
  }();
  return values;
}

}  // namespace

int64_t plan_override(Plan plan) {
  return overrides()[static_cast<int>(plan)].load(std::memory_order_relaxed);
}

void set_plan_override(Plan plan, int64_t value) {
  overrides()[static_cast<int>(plan)].store(value, std::memory_order_relaxed);
}

const char* plan_name(Plan plan) {
  switch (plan) {
    case Plan::kVoxelTable: return "voxel_table";
    case Plan::kFpsKernel: return "fps_kernel";
    case Plan::kFpsThreads: return "fps_threads";
    case Plan::kFpsPointsPerThread: return "fps_points_per_thread";
    case Plan::kCount: break;
  }
  return "";
}

}  // namespace torchvox
