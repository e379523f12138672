// SPDX-License-Identifier: Apache-2.0
//
// Entry of points_in_boxes, and its rule: which points a box holds.
#pragma once

#include "csrc/kernels/boxes/rotated_iou.h"

namespace torchvox {

enum class PointsInBoxesMode {
  kIndex,  // int32 [batches, points]: the first box that holds the point, or -1
  kMask,  // bool [batches, boxes, points]
  kCount,  // int32 [batches, boxes]
  kBits  // for box_query: uint32 [batches, boxes, words()], bit i % 32 of word i / 32 for point i;
         // rows of boxes that do not exist are not written
};

// Which points lie in which boxes.
struct PointsInBoxesArgs {
  BoxArray points;  // [batches, points, 3 or more]
  BoxArray boxes;  // [batches, boxes, 7 or more]
  DType dtype = DType::kFloat;  // kFloat or kDouble, of points and boxes
  int64_t batches = 0;
  IndexArray lengths, box_lengths;  // [batches]: points and boxes that exist
  double margin = 0;  // meters, added to half of the length and of the width
  PointsInBoxesMode mode = PointsInBoxesMode::kIndex;
  void* out = nullptr;

  TORCHVOX_HD static int64_t limited(const IndexArray& lengths, int64_t batch, int64_t capacity) {
    return clamp_index(lengths.given() ? lengths[batch] : capacity, 0, capacity);
  }
  TORCHVOX_HD int64_t point_count(int64_t batch) const {
    return limited(lengths, batch, points.rows);
  }
  TORCHVOX_HD int64_t box_count(int64_t batch) const {
    return limited(box_lengths, batch, boxes.rows);
  }
  TORCHVOX_HD int64_t words() const { return (points.rows + 31) / 32; }
};

TORCHVOX_KERNEL(PointsInBoxesArgs);

// A box ready for the test against points. A box without volume has x = NaN and holds nothing.
template <class T>
struct PointBox {
  T x, y, z, cos, sin, reach_l, reach_w, half_h;  // meters; reach: half the side plus the margin

  // A point in the frame of the box.
  struct Local {
    T along, across, up;
  };
  TORCHVOX_HD Local local(T px, T py, T pz) const {
    const T dx = px - x, dy = py - y;
    return {dx * cos + dy * sin, dy * cos - dx * sin, pz - z};
  }
  // mmcv's rule: open at the sides, closed above and below.
  TORCHVOX_HD bool holds(T px, T py, T pz) const {
    const Local at = local(px, py, pz);
    return (magnitude(at.along) < reach_l) & (magnitude(at.across) < reach_w) &
        (magnitude(at.up) <= half_h);
  }
};

template <class T>
TORCHVOX_HD PointBox<T> point_box(const T* row, T margin) {
  const auto turn = portable::sin_cos(row[6]);
  PointBox<T> box{row[0],
                  row[1],
                  row[2],
                  turn.cos,
                  turn.sin,
                  row[3] * T(0.5) + margin,
                  row[4] * T(0.5) + margin,
                  row[5] * T(0.5)};
  bool exists = row[3] > T(0) && row[4] > T(0) && row[5] > T(0);
  for (int c = 0; c < kBoxColumns; ++c) exists = exists && is_finite(row[c]);
  if (!exists) box.x = static_cast<T>(portable::not_a_number());
  return box;
}

}  // namespace torchvox
