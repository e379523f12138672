// SPDX-License-Identifier: Apache-2.0
//
// One test for the host on one thread, on two, and the device.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/cpp/check.h"

namespace torchvox::testing {

using Bytes = std::vector<uint8_t>;
using Ints = std::vector<int32_t>;

enum class Where { kThread, kThreads, kDevice };

// Memory where an op runs.
class Side {
 public:
  explicit Side(Where where) : where_(where) {}

  void* put(const Bytes& bytes) {
#ifdef TORCHVOX_CUDA
    if (where_ == Where::kDevice) {
      on_device_.push_back(std::make_unique<DeviceBuffer<uint8_t>>(bytes));
      return on_device_.back()->data();
    }
#endif
    on_host_.push_back(std::make_unique<Bytes>(bytes));
    return on_host_.back()->data();
  }
  const int32_t* put(const Ints& values) {
    Bytes bytes(4 * values.size());
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return static_cast<const int32_t*>(put(bytes));
  }
  // Room for `size` bytes of output, read back by out(i), i counting the calls of room().
  void* room(int64_t size) {
    rooms_.push_back(count());
    return put(Bytes(static_cast<size_t>(size), kPoison));
  }
  Bytes out(size_t i) const {
#ifdef TORCHVOX_CUDA
    if (where_ == Where::kDevice) return on_device_[rooms_[i]]->host();
#endif
    return *on_host_[rooms_[i]];
  }
  template <class Args>
  void run(const Args& args) const {
#ifdef TORCHVOX_CUDA
    if (where_ == Where::kDevice) return run_on_device(args);
#endif
    run_on_host(args, where_ == Where::kThreads ? ParallelFor(backward_for) : serial_for);
  }

 private:
  size_t count() const {
#ifdef TORCHVOX_CUDA
    if (where_ == Where::kDevice) return on_device_.size();
#endif
    return on_host_.size();
  }
  Where where_;
  std::vector<size_t> rooms_;
  std::vector<std::unique_ptr<Bytes>> on_host_;
#ifdef TORCHVOX_CUDA
  std::vector<std::unique_ptr<DeviceBuffer<uint8_t>>> on_device_;
#endif
};

}  // namespace torchvox::testing
