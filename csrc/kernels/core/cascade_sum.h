// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/arith.h"

namespace torchvox {

// A float sum whose order is part of its value: a base-32 cascade. 32 consecutive values are added
// left to right, then 32 such block sums, and so on; partial blocks are added last, finest first.
// Up to 32 values this is the plain loop. T is float or double.
template <class T>
class CascadeSum {
 public:
  TORCHVOX_HD void add(T value) {
    level_[0] += value;
    ++count_;
    for (int k = 1; k < kLevels; ++k) {
      if (count_ & ((uint32_t{1} << (5 * k)) - 1)) return;
      level_[k] += level_[k - 1];
      level_[k - 1] = T(0);
    }
  }
  TORCHVOX_HD T total() const {
    T sum = level_[0];
    for (int k = 1; k < kLevels; ++k) sum += level_[k];
    return sum;
  }

 private:
  static constexpr int kLevels = 7;  // 32^6 blocks of 32: more than 2^31 values
  T level_[kLevels] = {};
  uint32_t count_ = 0;
};

}  // namespace torchvox
