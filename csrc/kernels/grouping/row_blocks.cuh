// SPDX-License-Identifier: Apache-2.0
//
// Threads for a matrix of rows: elements of a row side by side on x, rows on y, so that no thread
// divides to learn which element it has. Clouds are walked on the grid's y.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace torchvox {

inline constexpr int kRowThreads = 256;

inline unsigned grid_y(int64_t count) {
  constexpr int64_t kMost = 65535;
  return static_cast<unsigned>(count < kMost ? count : kMost);
}

// Elements side by side, then as many rows as make a block.
inline dim3 block_of(int64_t elements) {
  const auto x = static_cast<unsigned>(elements < kRowThreads ? elements : kRowThreads);
  return dim3(x, kRowThreads / x);
}

}  // namespace torchvox
