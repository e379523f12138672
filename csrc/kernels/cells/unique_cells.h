// SPDX-License-Identifier: Apache-2.0
//
// The first and the last step of unique_cells; voxel_group is between them.
//
//   CellKeysArgs   packs the columns of a row into one key
//   CellRowsArgs   writes the cell and the size of each group
//
// Where the columns do not fit one key, the glue groups by the first columns and packs the rank of
// the group in their place.
#pragma once

#include "csrc/kernels/core/map.h"

namespace torchvox {

inline constexpr int kRankBits = 31;

// Rows of integers, by strides.
struct CellMatrix {
  IndexArray data;  // [rows, columns]
  int64_t rows = 0, row_stride = 0, column_stride = 0;
  int columns = 1;

  TORCHVOX_HD int64_t at(int64_t row, int column) const {
    return data[row * row_stride + column * column_stride];
  }
};

// The key of a row: the rank of its first columns, then columns [first, last), then a rank that
// stands for the next column. -1 for a row with a column outside [0, 2^bits).
struct CellKeysArgs {
  CellMatrix cells;
  int bits = 63;
  int first = 0, last = 0;
  const int32_t* before = nullptr;  // [rows]; null: none
  const int32_t* behind = nullptr;  // [rows]; null: none
  int64_t* keys = nullptr;  // [rows]
};

TORCHVOX_HD void write_cell_key(const CellKeysArgs& args, int64_t row) {
  uint64_t key = args.before ? static_cast<uint32_t>(args.before[row]) : 0;
  bool dropped = false;
  for (int c = 0; c < args.cells.columns; ++c) {
    const uint64_t column = static_cast<uint64_t>(args.cells.at(row, c));
    dropped |= column >> args.bits != 0;
    if (c >= args.first && c < args.last) key = key << args.bits | column;
  }
  if (args.behind) key = key << kRankBits | static_cast<uint32_t>(args.behind[row]);
  args.keys[row] = dropped ? -1 : static_cast<int64_t>(key);
}
TORCHVOX_MAP(CellKeysArgs, write_cell_key, args.cells.rows, 8192, 256);

struct CellRowsArgs {
  CellMatrix cells;
  const int32_t* offsets = nullptr;  // [rows + 1], of voxel_group
  const int32_t* perm = nullptr;  // [rows]
  void* indices = nullptr;  // [rows, columns] in the type of the cells
  int32_t* num_points = nullptr;  // [rows]
};

TORCHVOX_HD void write_cell_row(const CellRowsArgs& args, int64_t row) {
  const int32_t begin = args.offsets[row], count = args.offsets[row + 1] - begin;
  args.num_points[row] = count;
  for (int c = 0; c < args.cells.columns; ++c) {
    const int64_t column = count > 0 ? args.cells.at(args.perm[begin], c) : -1;
    const int64_t i = row * args.cells.columns + c;
    if (args.cells.data.wide) {
      static_cast<int64_t*>(args.indices)[i] = column;
    } else {
      static_cast<int32_t*>(args.indices)[i] = static_cast<int32_t>(column);
    }
  }
}
TORCHVOX_MAP(CellRowsArgs, write_cell_row, args.cells.rows, 8192, 256);

}  // namespace torchvox
