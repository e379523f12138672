// SPDX-License-Identifier: Apache-2.0
//
// Numbers the occupied cells of a grid in ascending order, without a hash and without a sort.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/entry.h"

namespace torchvox {

TORCHVOX_HD int bit_count(uint64_t bits) {
#ifdef __CUDA_ARCH__
  return __popcll(bits);
#else
  return __builtin_popcountll(bits);
#endif
}

// Bitmaps of two levels with running counts. A segment is 64 consecutive cells; the upper level has
// a bit per segment, the lower one a word, a leaf, per segment that is not empty. It is filled in
// steps that must follow one another: all cells enter their segments, segments are counted, cells
// enter their leaves, leaves are counted. Bits are set by atomics, which commute. In a small grid
// every segment has a leaf, and the first two steps and the upper level fall away.
struct RankTree {
  uint64_t* segments = nullptr;  // [words()]
  uint32_t* leaves_before = nullptr;  // [words() + 1]
  uint64_t* leaves = nullptr;  // [most_leaves]
  uint32_t* cells_before = nullptr;  // [most_leaves + 1]
  int64_t grid_cells = 0, most_leaves = 0;
  bool all_leaves = true;

  RankTree() = default;
  // most: leaves that cells can lie in; large: whatever the grid's size.
  RankTree(int64_t grid_cells, int64_t most, bool large)
      : grid_cells(grid_cells),
        most_leaves(grid_cells / 64 + 1),  // the cell behind the last one has a word too
        all_leaves(!large && most_leaves <= 2 * most) {
    if (!all_leaves) most_leaves = std::min(most, most_leaves);
  }
  // The words that must be 0 at first, and then the others.
  void take_bits(Workspace& workspace) {
    segments = workspace.take<uint64_t>(words());
    leaves = workspace.take<uint64_t>(most_leaves);
  }
  void take_counts(Workspace& workspace) {
    leaves_before = workspace.take<uint32_t>(words() + 1);
    cells_before = workspace.take<uint32_t>(most_leaves + 1);
  }

  TORCHVOX_HD int64_t words() const { return all_leaves ? 0 : grid_cells / 4096 + 1; }
  // Once they are counted.
  TORCHVOX_HD int64_t leaf_count() const {
    return all_leaves ? most_leaves : int64_t{leaves_before[words()]};
  }

  TORCHVOX_HD void enter_segment(int64_t cell) const {
    atomic_set_bits(&segments[cell >> 12], uint64_t{1} << (cell >> 6 & 63));
  }
  // The number of leaves before that of the cell; *has_leaf says whether it has one.
  TORCHVOX_HD int64_t leaf_of(int64_t cell, bool* has_leaf) const {
    *has_leaf = true;
    if (all_leaves) return cell >> 6;
    const uint64_t word = segments[cell >> 12];
    const int bit = static_cast<int>(cell >> 6 & 63);
    *has_leaf = (word >> bit & 1) != 0;
    return int64_t{leaves_before[cell >> 12]} + bit_count(word & ((uint64_t{1} << bit) - 1));
  }
  TORCHVOX_HD void enter_cell(int64_t cell) const {
    bool has_leaf;
    atomic_set_bits(&leaves[leaf_of(cell, &has_leaf)], uint64_t{1} << (cell & 63));
  }

  // The number of occupied cells before this one.
  TORCHVOX_HD int64_t before(int64_t cell) const {
    bool has_leaf;
    const int64_t leaf = leaf_of(cell, &has_leaf);
    const uint64_t below = (uint64_t{1} << (cell & 63)) - 1;
    return int64_t{cells_before[leaf]} + (has_leaf ? bit_count(leaves[leaf] & below) : 0);
  }
};

}  // namespace torchvox
