// SPDX-License-Identifier: Apache-2.0
//
// The table of forced plans of the process, by name.
#include "csrc/kernels/core/plan_override.h"

#include <map>
#include <mutex>

namespace torchvox {
namespace {

// Created by the first override while libraries load; never destroyed.
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
  const auto entry = registry.values.find(name);
  if (entry == registry.values.end()) return false;
  entry->second.store(value, std::memory_order_relaxed);
  return true;
}

}  // namespace torchvox
