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
// enter their leaves, leaves are counted. Bits are set by atomics, which commute.
struct RankTree {
  uint64_t* segments = nullptr;  // [words()]
  uint32_t* leaves_before = nullptr;  // [words()]
  uint64_t* leaves = nullptr;  // [most_leaves]
  uint32_t* cells_before = nullptr;  // [most_leaves + 1]
  int64_t grid_cells = 0, most_leaves = 0;

  RankTree() = default;
  RankTree(int64_t grid_cells, int64_t most)
      : grid_cells(grid_cells), most_leaves(std::min(most, grid_cells / 64 + 1)) {}
  // The words that must be 0 at first, and then the others.
  void take_segments(Workspace& workspace) { segments = workspace.take<uint64_t>(words()); }
  void take_others(Workspace& workspace) {
    leaves_before = workspace.take<uint32_t>(words());
    leaves = workspace.take<uint64_t>(most_leaves);
    cells_before = workspace.take<uint32_t>(most_leaves + 1);
  }

  // The cell behind the last one has a word too.
  TORCHVOX_HD int64_t words() const { return grid_cells / 4096 + 1; }

  TORCHVOX_HD void enter_segment(int64_t cell) const {
    atomic_set_bits(&segments[cell >> 12], uint64_t{1} << (cell >> 6 & 63));
  }
  // The number of leaves before that of the cell; *found says whether it has one.
  TORCHVOX_HD uint32_t leaf_of(int64_t cell, bool* found) const {
    const uint64_t word = segments[cell >> 12];
    const int bit = static_cast<int>(cell >> 6 & 63);
    *found = (word >> bit & 1) != 0;
    return leaves_before[cell >> 12] + bit_count(word & ((uint64_t{1} << bit) - 1));
  }
  TORCHVOX_HD void enter_cell(int64_t cell) const {
    bool found;
    atomic_set_bits(&leaves[leaf_of(cell, &found)], uint64_t{1} << (cell & 63));
  }

  // The number of occupied cells before this one.
  TORCHVOX_HD int64_t before(int64_t cell) const {
    bool found;
    const uint32_t leaf = leaf_of(cell, &found);
    const uint64_t below = (uint64_t{1} << (cell & 63)) - 1;
    return cells_before[leaf] + (found ? bit_count(leaves[leaf] & below) : 0);
  }
};

// Look-ups of cells near one another, which mostly share a leaf.
struct RankReader {
  const RankTree& tree;
  int64_t segment = -1;
  uint64_t leaf = 0;
  uint32_t before = 0;

  // The rank of a cell, or -1 if it is not occupied.
  TORCHVOX_HD int64_t rank(int64_t cell) {
    if (cell >> 6 != segment) {
      bool found;
      segment = cell >> 6;
      const uint32_t number = tree.leaf_of(cell, &found);
      leaf = found ? tree.leaves[number] : 0;
      before = found ? tree.cells_before[number] : 0;
    }
    const uint64_t bit = uint64_t{1} << (cell & 63);
    return leaf & bit ? int64_t{before} + bit_count(leaf & (bit - 1)) : -1;
  }
};

}  // namespace torchvox
