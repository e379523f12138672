// SPDX-License-Identifier: Apache-2.0
//
// Morton codes of points in a cube. They only bring neighbours together: no rounding here can
// change a result.
#pragma once

#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

// x >= low to a cell below `cells`. Halves first, because high - low may overflow.
TORCHVOX_HD uint32_t cell_of(float x, float low, float scale, uint32_t cells) {
  const float at = (0.5f * x - 0.5f * low) * scale;
  const float last = static_cast<float>(cells - 1);
  return at > 0.0f ? static_cast<uint32_t>(at < last ? at : last) : 0;  // NaN (0 * inf): 0
}

// Cells per half metre of the longest side of [low, high], the one scale of all axes.
TORCHVOX_HD float scale_of(const float low[3], const float high[3], uint32_t cells) {
  float extent = 0.0f;
  for (int axis = 0; axis < 3; ++axis) {
    const float side = 0.5f * high[axis] - 0.5f * low[axis];
    extent = side > extent ? side : extent;
  }
  return extent > 0.0f ? static_cast<float>(cells) / extent : 0.0f;
}

// The low 10 bits of x with two zeros before each.
TORCHVOX_HD uint32_t spread_bits(uint32_t x) {
  x = (x | (x << 16)) & 0x030000ffu;
  x = (x | (x << 8)) & 0x0300f00fu;
  x = (x | (x << 4)) & 0x030c30c3u;
  return (x | (x << 2)) & 0x09249249u;
}

// `cells` a power of two, at most 1024.
TORCHVOX_HD uint32_t morton_code(const Point3& p, const float low[3], float scale, uint32_t cells) {
  return spread_bits(cell_of(p.a, low[0], scale, cells)) |
      spread_bits(cell_of(p.b, low[1], scale, cells)) << 1 |
      spread_bits(cell_of(p.c, low[2], scale, cells)) << 2;
}

}  // namespace torchvox
