// SPDX-License-Identifier: Apache-2.0
//
// A hash table that finds the lowest row of a cell. Its layout depends on who came first, what it
// finds does not.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/entry.h"

namespace torchvox {

// A place of the table is of a line, eight consecutive cells, and has a row for each of them.
struct CellTable {
  static constexpr int64_t kLine = 8;
  static constexpr uint64_t kNoLine = ~uint64_t{0};
  static constexpr uint32_t kNoRow = ~uint32_t{0};

  uint64_t* lines = nullptr;  // [places]; kNoLine at first
  uint32_t* rows = nullptr;  // [places, kLine]; kNoRow at first
  int64_t places = 0;  // of which two thirds stay free

  CellTable() = default;
  CellTable(int64_t rows_in_all, Workspace& workspace) : places(3 * rows_in_all + 1) {
    lines = workspace.take<uint64_t>(places);
    rows = workspace.take<uint32_t>(places * kLine);
  }
  TORCHVOX_HD int64_t first(int64_t line) const {
    const uint64_t mixed = static_cast<uint64_t>(line) * 0x9e3779b97f4a7c15u >> 32;
    return static_cast<int64_t>(mixed * static_cast<uint64_t>(places) >> 32);
  }
  TORCHVOX_HD int64_t next(int64_t place) const { return place + 1 < places ? place + 1 : 0; }

  // Enters a row. Returns the row that is not the lowest of its cell, as this call shows, or -1:
  // every row but the lowest is returned once.
  TORCHVOX_HD int64_t enter(int64_t cell, int64_t row) const {
    const auto line = static_cast<uint64_t>(cell / kLine);
    int64_t place = first(cell / kLine);
    for (;; place = next(place)) {
      uint64_t old = load_any(&lines[place]);
      if (old == line) break;
      if (old != kNoLine) continue;
      if (atomic_replace(&lines[place], &old, line) || old == line) break;
    }
    const auto mine = static_cast<uint32_t>(row);
    const uint32_t old = atomic_min(&rows[place * kLine + cell % kLine], mine);
    return old == kNoRow ? -1 : int64_t{old > mine ? old : mine};
  }

  // The lowest rows of ascending cells of at most two lines, or -1; of a cell -1, too. The reads of
  // both lines do not wait for one another.
  template <int kCells>
  TORCHVOX_HD void find(const int64_t (&cells)[kCells], int32_t (&found)[kCells]) const {
    constexpr int kLines = 2;
    int64_t line[kLines] = {-1, -1}, place[kLines];
    uint64_t at[kLines];
    for (int i = 0; i < kCells; ++i) {
      if (cells[i] < 0) continue;
      if (line[0] < 0) line[0] = cells[i] / kLine;
      if (cells[i] / kLine != line[0]) line[1] = cells[i] / kLine;
    }
    for (int l = 0; l < kLines; ++l) {
      place[l] = first(line[l]);
      at[l] = line[l] < 0 ? kNoLine : lines[place[l]];
    }
    for (bool again = true; again;) {
      again = false;
      for (int l = 0; l < kLines; ++l) {
        if (at[l] == kNoLine || at[l] == static_cast<uint64_t>(line[l])) continue;
        place[l] = next(place[l]);
        at[l] = lines[place[l]];
        again = true;
      }
    }
    for (int i = 0; i < kCells; ++i) {
      const bool in_first = cells[i] / kLine == line[0];
      const bool any = cells[i] >= 0 && (in_first ? at[0] : at[1]) != kNoLine;
      const int64_t start = kLine * (in_first ? place[0] : place[1]);
      found[i] = any ? static_cast<int32_t>(rows[start + cells[i] % kLine]) : -1;
    }
  }
};

}  // namespace torchvox
