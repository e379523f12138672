// SPDX-License-Identifier: Apache-2.0
//
// Float sums whose order is part of their value: the same bits on the host, on the device and by
// every launch plan.
#pragma once

#include "csrc/kernels/core/arith.h"

namespace torchvox {

// A float sum whose order is part of its value: a base-32 cascade. 32 consecutive values are added
// left to right, then 32 such block sums, and so on; partial blocks are added last, finest first.
// Every partial sum starts at +0. Up to 32 values this is the plain loop. T is float, double or
// a few of them side by side.
//
// Whole blocks may be summed elsewhere, in parallel, and added here in order: a long sum need not
// be one serial chain.
// 7 levels hold more than 2^31 values; fewer levels need fewer registers and hold 32^kLevels - 1.
template <class T, int kLevels = 7>
class CascadeSum {
 public:
  TORCHVOX_HD void add(T value) { add_block<0>(value); }
  // The sum of 32^kLevel consecutive values, of which none was added before.
  template <int kLevel>
  TORCHVOX_HD void add_block(T sum) {
    level_[kLevel] += sum;
    count_ += uint32_t{1} << (5 * kLevel);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int k = kLevel + 1; k < kLevels; ++k) {
      if (count_ & ((uint32_t{1} << (5 * k)) - 1)) return;
      level_[k] += level_[k - 1];
      level_[k - 1] = T{};
    }
  }
  // The sum of the values of a partial block of level kLevel, the last ones to come.
  template <int kLevel>
  TORCHVOX_HD void add_rest(T sum) {
    level_[kLevel] = sum;
  }
  // The sum of the next 32 values, or of fewer, the last ones.
  TORCHVOX_HD void add_part(T sum, bool is_whole) {
    is_whole ? add_block<1>(sum) : add_rest<0>(sum);
  }
  TORCHVOX_HD T total() const {
    T sum = level_[0];
    for (int k = 1; k < kLevels; ++k) sum += level_[k];
    return sum;
  }

 private:
  T level_[kLevels] = {};
  uint32_t count_ = 0;
};

// The one order of a segment sum over slots: ascending, in chunks of 256 that start at +0 and whose
// sums are added in order. Chunks may be summed in parallel, so that a row named by every slot is
// not one serial chain.
inline constexpr int kSumChunk = 256;

// The sum of the slots of a row, one after another; see kSumChunk. T is a number or Channels of
// them.
template <class T>
class ChunkedSum {
 public:
  TORCHVOX_HD void add(const T& value) {
    chunk_ += value;
    if (++count_ == kSumChunk) {
      total_ += chunk_;
      chunk_ = T{};
      count_ = 0;
    }
  }
  TORCHVOX_HD T total() const { return total_ + chunk_; }

 private:
  T total_ = {}, chunk_ = {};
  int count_ = 0;
};

}  // namespace torchvox
