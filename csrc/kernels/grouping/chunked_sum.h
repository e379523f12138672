// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/arith.h"

namespace torchvox {

// The one order in which a row adds up the gradients of its slots: ascending, in chunks of 256 from
// +0 whose sums are added in order. Chunks may be summed apart, so a row that every slot reads is
// no serial chain.
inline constexpr int kSumChunk = 256;

template <class T>
class ChunkedSum {
 public:
  TORCHVOX_HD void add(T value) {
    chunk_ += value;
    if (++count_ == kSumChunk) {
      total_ += chunk_;
      chunk_ = 0;
      count_ = 0;
    }
  }
  TORCHVOX_HD T total() const { return total_ + chunk_; }

 private:
  T total_ = 0, chunk_ = 0;
  int count_ = 0;
};

}  // namespace torchvox
