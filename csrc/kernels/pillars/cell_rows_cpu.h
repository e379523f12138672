// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/pillars/map.h"

namespace torchvox {

// The row that each cell of a canvas shows, on the host: the lowest of its rows, -1 for none.
class HostCellRows {
 public:
  HostCellRows(const PillarRows& rows, Workspace& workspace)
      : row_(workspace.take<int32_t>(rows.cells())) {}

  void fill(const PillarRows& rows) const {
    std::fill_n(row_, rows.cells(), -1);
    for (int64_t row = rows.rows - 1; row >= 0; --row) {
      const int64_t cell = rows.cell(row);
      if (cell >= 0) row_[cell] = static_cast<int32_t>(row);
    }
  }
  int64_t row(int64_t cell) const { return row_[cell]; }
  // The cell that shows the row, or -1.
  int64_t shown(const PillarRows& rows, int64_t row) const {
    const int64_t cell = rows.cell(row);
    return cell >= 0 && row_[cell] == row ? cell : -1;
  }
  // Zeros in the cells of a canvas [cells, elements] that show no row.
  void write_zeros(void* canvas, const PillarRows& rows, int64_t elements, DType dtype,
                   const ParallelFor& parallel_for) const {
    const int64_t bytes = elements * size_of(dtype);
    for_each_index(parallel_for, rows.cells(), 4096, [&](int64_t cell) {
      if (row_[cell] < 0) std::memset(static_cast<char*>(canvas) + cell * bytes, 0, bytes);
    });
  }

 private:
  int32_t* row_;
};

}  // namespace torchvox
