// SPDX-License-Identifier: Apache-2.0
//
// Tables of sparse convolutions: which row each output row reads at each offset of a kernel.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

inline constexpr int64_t kMostOffsets = 125;  // of a kernel

struct SparseTable {
  const int32_t* entries = nullptr;  // [volume, rows]
  int64_t volume = 0, rows = 0;
  IndexArray num_valid;  // rows in use, its first element; null: all
  int64_t sources = 0;  // rows that entries may name
  IndexArray sources_valid;  // and those of them in use, likewise

  TORCHVOX_HD int64_t valid() const { return first_of(num_valid, rows); }
  TORCHVOX_HD int64_t valid_sources() const { return first_of(sources_valid, sources); }
  // The row that `row` reads, or -1. limit: valid_sources().
  TORCHVOX_HD int32_t at(int64_t offset, int64_t row, int64_t limit) const {
    const int32_t entry = entries[offset * rows + row];
    return entry >= 0 && entry < limit ? entry : -1;
  }

 private:
  static TORCHVOX_HD int64_t first_of(const IndexArray& valid, int64_t rows) {
    return valid.given() ? clamp_index(valid[0], 0, rows) : rows;
  }
};

struct SparseKernelSize {
  int64_t z = 1, y = 1, x = 1;
};

}  // namespace torchvox
