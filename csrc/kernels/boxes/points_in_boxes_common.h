// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/boxes/points_in_boxes.h"
#include "csrc/kernels/boxes/rotated_overlap.h"

namespace torchvox {

// A box as points meet it. A box without volume has x = NaN and holds nothing.
template <class T>
struct PointBox {
  T x, y, z, cos, sin, reach_l, reach_w, half_h;

  // mmcv's rule: open at the sides, closed above and below.
  TORCHVOX_HD bool holds(T px, T py, T pz) const {
    const T dx = px - x, dy = py - y;
    const T along = dx * cos + dy * sin, across = dy * cos - dx * sin;
    return (magnitude(along) < reach_l) & (magnitude(across) < reach_w) &
        (magnitude(pz - z) <= half_h);
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
