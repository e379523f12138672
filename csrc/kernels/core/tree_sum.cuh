// SPDX-License-Identifier: Apache-2.0
//
// The upper levels of sums over the tree of tree_sum.h, of many columns at once.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/ordered_sum.h"

namespace torchvox {

// At most as many rows are left to the threads of tree_total(), one per column.
inline constexpr int64_t kLastTreeRows = 128;

// One thread per column and group of 32 rows: reads `from` [rows, columns] and writes the group's
// sum to `to` [groups, columns]. Threads of a warp read neighboring columns.
static __global__ void __launch_bounds__(256)
    tree_level_kernel(const double* from, int64_t rows, int64_t columns, double* to) {
  let_next_begin();
  wait_for_previous();
  const int64_t groups = ceil_div<int64_t>(rows, 32);
  for (int64_t i = global_thread(); i < groups * columns; i += global_stride()) {
    const int64_t group = i / columns, column = i % columns;
    double sum = 0;
#pragma unroll 8
    for (int64_t row = 32 * group; row < 32 * group + 32 && row < rows; ++row) {
      sum += from[row * columns + column];
    }
    to[i] = sum;
  }
}

// The levels above `rows` partial sums [rows, columns], until kLastTreeRows rows or fewer are left.
class TreeLevels {
 public:
  TreeLevels(int64_t rows, int64_t columns, Workspace& workspace)
      : rows_(rows), columns_(columns), first_(workspace.take<double>(rows * columns)) {
    for (int64_t r = rows; r > kLastTreeRows;) {
      r = ceil_div<int64_t>(r, 32);
      other_[levels_++] = workspace.take<double>(r * columns);
    }
  }
  double* first() const { return first_; }  // [rows, columns], which the caller fills
  // [last_rows(), columns] for tree_total() in a later kernel.
  const double* last() const { return levels_ ? other_[levels_ - 1] : first_; }
  int64_t last_rows() const {
    int64_t r = rows_;
    for (int i = 0; i < levels_; ++i) r = ceil_div<int64_t>(r, 32);
    return r;
  }
  cudaError_t launch(const CudaContext& context) const {
    int64_t r = rows_;
    const double* from = first_;
    for (int i = 0; i < levels_; ++i) {
      const int64_t groups = ceil_div<int64_t>(r, 32);
      TORCHVOX_CUDA_CHECK(launch_items_after(tree_level_kernel, groups * columns_, 256, context,
                                             from, r, columns_, other_[i]));
      from = other_[i];
      r = groups;
    }
    return cudaSuccess;
  }

 private:
  int64_t rows_, columns_;
  double* first_;
  double* other_[6] = {};  // 32^6 rows and more
  int levels_ = 0;
};

// The sum of a column of the last level, in groups of 32 rows as below it.
__device__ __forceinline__ double tree_total(const double* from, int64_t rows, int64_t columns,
                                             int64_t column) {
  CascadeSum<double> sum;
  for (int64_t first = 0; first < rows; first += 32) {
    double part = 0;
    const int64_t end = first + 32 < rows ? first + 32 : rows;
#pragma unroll 8
    for (int64_t row = first; row < end; ++row) part += from[row * columns + column];
    sum.add_part(part, end - first == 32);
  }
  return sum.total();
}

}  // namespace torchvox
