// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace torchvox {

// The caller's thread pool. Calls body(begin, end) on disjoint ranges that cover [0, count), in any
// order and on any thread. Kernels start no threads of their own.
using ParallelFor =
    std::function<void(int64_t count, const std::function<void(int64_t begin, int64_t end)>& body)>;

// Runs everything on the calling thread.
inline void serial_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  if (count > 0) body(0, count);
}

}  // namespace torchvox
