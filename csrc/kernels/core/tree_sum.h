// SPDX-License-Identifier: Apache-2.0
//
// Sums over a tree that depends on the number of addends alone, so that threads do not change the
// result: 32 neighbors left to right, from +0, then 32 such sums, and so on. Addends of +0 at the
// end change nothing.
#pragma once

#include <algorithm>

#include "csrc/kernels/core/entry.h"

namespace torchvox {

inline constexpr int64_t kTreeWidth = 32;

// a * b added to a sum in double. A product of two floats is exact there.
TORCHVOX_HD double plus_product(double sum, float a, float b) {
#ifdef __CUDA_ARCH__
  return fma_rn(static_cast<double>(a), static_cast<double>(b), sum);
#else
  return sum + static_cast<double>(a) * static_cast<double>(b);
#endif
}
TORCHVOX_HD double plus_product(double sum, double a, double b) { return sum + a * b; }

// The tree on the host: the caller fills the sum of each group of 32 rows, total() does the rest.
class HostTree {
 public:
  HostTree(int64_t rows, int64_t columns, Workspace& workspace)
      : groups_((rows + kTreeWidth - 1) / kTreeWidth),
        columns_(columns),
        sums_(workspace.take<double>(std::max<int64_t>(groups_, 1) * columns)) {}

  int64_t groups() const { return groups_; }
  double* of(int64_t group) const { return sums_ + group * columns_; }

  // The totals [columns]. Level by level, in place: group g of a level writes row g, which only
  // groups up to g read.
  const double* total(const ParallelFor& parallel_for) const {
    if (groups_ == 0) std::fill_n(sums_, columns_, 0.0);
    for (int64_t rows = groups_; rows > 1; rows = (rows + kTreeWidth - 1) / kTreeWidth) {
      for_each_index(parallel_for, columns_, 64, [&](int64_t column) {
        for (int64_t first = 0; first < rows; first += kTreeWidth) {
          double sum = 0;
          const int64_t end = std::min(first + kTreeWidth, rows);
          for (int64_t row = first; row < end; ++row) sum += sums_[row * columns_ + column];
          sums_[first / kTreeWidth * columns_ + column] = sum;
        }
      });
    }
    return sums_;
  }

 private:
  int64_t groups_, columns_;
  double* sums_;
};

}  // namespace torchvox
