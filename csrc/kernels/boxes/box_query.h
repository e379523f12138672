// SPDX-License-Identifier: Apache-2.0
//
// Entry of box_query, and its rule: the cells of a box.
//
// 1. points_in_boxes writes a bit for every point and box: the only memory that a call needs,
//    however many points a box holds.
// 2. The bits of a box are read in ascending order. The slot of a point is its rank among the
//    points of its cell.
#pragma once

#include "csrc/kernels/boxes/points_in_boxes.h"

namespace torchvox {

// The first points of each cell of each box, by index.
struct BoxQueryArgs {
  PointsInBoxesArgs inside;  // all but mode and out
  int64_t grid[3] = {1, 1, 1};  // cells along length, width and height; below 2^31 in all
  int64_t slots = 0;  // per cell
  int32_t* index = nullptr;  // [batches, boxes, cells, slots]; -1 in slots that are not used
  int32_t* count = nullptr;  // [batches, boxes, cells]: points in the cell, also beyond `slots`

  TORCHVOX_HD int64_t cells() const { return grid[0] * grid[1] * grid[2]; }
  TORCHVOX_HD int64_t rows() const { return inside.batches * inside.boxes.rows; }
};

TORCHVOX_KERNEL_WITH_WORKSPACE(BoxQueryArgs, args.rows() * args.inside.words() * 4);

// The call that writes the bits to `memory`.
inline PointsInBoxesArgs bits_of(const BoxQueryArgs& args, void* memory) {
  PointsInBoxesArgs bits = args.inside;
  bits.mode = PointsInBoxesMode::kBits;
  bits.out = memory;
  return bits;
}

// The input and output ranges of one box.
struct BoxWalk {
  int64_t batch, words;  // words of bits of the points that exist
  const uint32_t* bits;
  int32_t* index;
  int32_t* count;

  TORCHVOX_HD BoxWalk(const BoxQueryArgs& args, const void* all_bits, int64_t row) {
    const PointsInBoxesArgs& inside = args.inside;
    batch = row / inside.boxes.rows;
    const bool exists = row % inside.boxes.rows < inside.box_count(batch);
    words = exists ? (inside.point_count(batch) + 31) / 32 : 0;
    bits = static_cast<const uint32_t*>(all_bits) + row * inside.words();
    index = args.index + row * args.cells() * args.slots;
    count = args.count + row * args.cells();
  }
};

// A box cut into cells, of which z varies fastest.
template <class T>
struct CellBox {
  PointBox<T> box;
  T half[3], step[3];
  int64_t grid[3];

  TORCHVOX_HD CellBox(const BoxQueryArgs& args, const T* row) : box(point_box(row, T(0))) {
    for (int axis = 0; axis < 3; ++axis) {
      grid[axis] = args.grid[axis];
      half[axis] = row[3 + axis] * T(0.5);
      step[axis] = row[3 + axis] / static_cast<T>(grid[axis]);
    }
  }
  // Points in the margin belong to the outermost cells.
  TORCHVOX_HD int64_t cell(int axis, T at) const {
    const T steps = (at + half[axis]) / step[axis];
    if (!(steps > T(0))) return 0;
    return steps < static_cast<T>(grid[axis]) ? static_cast<int64_t>(steps) : grid[axis] - 1;
  }
  TORCHVOX_HD int32_t cell(const T* point) const {
    const typename PointBox<T>::Local at = box.local(point[0], point[1], point[2]);
    const int64_t x = cell(0, at.along), y = cell(1, at.across), z = cell(2, at.up);
    return static_cast<int32_t>((x * grid[1] + y) * grid[2] + z);
  }
};

}  // namespace torchvox
