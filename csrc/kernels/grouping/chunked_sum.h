// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/core/arith.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {

// The sum of the slots of a row, one after another; see kSumChunk. T is a number or Lanes of them.
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
