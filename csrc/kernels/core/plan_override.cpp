// SPDX-License-Identifier: Apache-2.0
//
// The forced plans of the process, by name.
#include "csrc/kernels/core/plan_override.h"

#include <map>
#include <mutex>

namespace torchvox {
namespace {

// Made by the first override, while libraries load, and never destroyed.
struct Registry {
  std::mutex mutex;
  std::map<std::string, std::atomic<int64_t>> values;

  static Registry& get() {
    static Registry* const registry = new Registry;
    return *registry;
  }
};

}  // namespace

PlanOverride::PlanOverride(const char* name) {
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  value_ = &registry.values.try_emplace(name, kAutomatic).first->second;
}

bool set_plan_override(const std::string& name, int64_t value) {
  Registry& registry = Registry::get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  const auto found = registry.values.find(name);
  if (found == registry.values.end()) return false;
  found->second.store(value, std::memory_order_relaxed);
  return true;
}

}  // namespace torchvox
