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
  static constexpr int kLineBits = 3, kLine = 1 << kLineBits;
  static constexpr int kMost = 3;  // cells of one search
  static constexpr uint64_t kNoLine = ~uint64_t{0};
  static constexpr uint32_t kNoRow = ~uint32_t{0};

  uint64_t* lines = nullptr;  // [places]; kNoLine at first
  uint32_t* rows = nullptr;  // [places, kLine]; kNoRow at first
  uint32_t places = 0;  // of which two thirds stay free, or a third where 2^32 are too few

  CellTable() = default;
  CellTable(int64_t most_rows, Workspace& workspace)
      : places(static_cast<uint32_t>(std::min<int64_t>(3 * most_rows + 1, kNoRow))) {
    lines = workspace.take<uint64_t>(places);
    rows = workspace.take<uint32_t>(size());
  }
  TORCHVOX_HD int64_t size() const { return int64_t{places} * kLine; }

  // Without the shift the lines of a column of some grids would lie side by side: the product takes
  // steps of any Fibonacci number to steps of nearly 0.
  TORCHVOX_HD uint32_t first(uint64_t line) const {
    const uint64_t mixed = (line ^ line >> 12) * 0x9e3779b97f4a7c15u >> 32;
    return static_cast<uint32_t>(mixed * places >> 32);
  }
  TORCHVOX_HD uint32_t next(uint32_t place) const { return place + 1 < places ? place + 1 : 0; }

  // Enters a row. Returns the row that is not the lowest of its cell, as this call shows, or -1:
  // every row but the lowest is returned once.
  TORCHVOX_HD int64_t enter(int64_t cell, int64_t row) const {
    const auto line = static_cast<uint64_t>(cell) / kLine;
    uint32_t place = first(line);
    for (uint64_t old; old = kNoLine, !atomic_replace(&lines[place], &old, line) && old != line;) {
      place = next(place);
    }
    const auto mine = static_cast<uint32_t>(row);
    const uint32_t old = atomic_min(&rows[int64_t{place} * kLine + cell % kLine], mine);
    return old == kNoRow ? -1 : int64_t{old > mine ? old : mine};
  }

  // The lowest rows of the wanted ones of cells first_cell, first_cell + step, .. of at most two
  // lines, or -1. The reads of the lines do not wait for one another.
  TORCHVOX_HD void find(int64_t first_cell, int64_t step, const bool (&wanted)[kMost],
                        int32_t (&lowest)[kMost]) const {
    const auto line = static_cast<uint64_t>(first_cell >> kLineBits);
    const int at = static_cast<int>(first_cell & (kLine - 1));
    uint32_t place[2];
    uint64_t there[2];
    for (int l = 0; l < 2; ++l) {
      bool needed = false;
      for (int i = 0; i < kMost; ++i) needed |= wanted[i] && (at + i * step >= kLine) == (l == 1);
      place[l] = first(line + l);
      there[l] = needed ? lines[place[l]] : kNoLine;
    }
    for (bool again = true; again;) {
      again = false;
      for (int l = 0; l < 2; ++l) {
        if (there[l] == kNoLine || there[l] == line + l) continue;
        place[l] = next(place[l]);
        there[l] = lines[place[l]];
        again = true;
      }
    }
    for (int i = 0; i < kMost; ++i) {
      const bool next_line = at + i * step >= kLine;
      const uint64_t one = next_line ? there[1] : there[0];
      const int64_t start = int64_t{next_line ? place[1] : place[0]} * kLine;
      const int64_t slot = (at + i * step) & (kLine - 1);
      lowest[i] = wanted[i] && one != kNoLine ? static_cast<int32_t>(rows[start + slot]) : -1;
    }
  }
};

}  // namespace torchvox
