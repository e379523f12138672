// SPDX-License-Identifier: Apache-2.0
//
// How host kernels use the caller's threads.
#pragma once

#include <algorithm>
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

// body(i) for every i below `count`, in tasks of `per_task`.
template <class Body>
void for_each_index(const ParallelFor& parallel_for, int64_t count, int64_t per_task,
                    const Body& body) {
  parallel_for((count + per_task - 1) / per_task, [&](int64_t first, int64_t last) {
    const int64_t end = std::min(last * per_task, count);
    for (int64_t i = first * per_task; i < end; ++i) body(i);
  });
}

}  // namespace torchvox
