// SPDX-License-Identifier: Apache-2.0
//
// Squared distances in one of two orders of rounding, the gap to a box that bounds them, and Morton
// and Hilbert codes of points in a cube, which only bring neighbors together: no rounding there can
// change a result.
#pragma once

#include <cmath>

#include "csrc/kernels/core/cloud_batch.h"

namespace torchvox {

// The order in which the axes enter a squared distance, hence its rounding.
enum class DistOrder {
  kPn2,  // fma(dz, dz, fma(dx, dx, dy*dy)): nvcc's contraction of dx*dx + dy*dy + dz*dz, D = 3 only
  kLoop  // fma(d_i, d_i, acc) from 0, axis by axis
};

// A point of at most three axes in summation order: (y, x, z) for kPn2, (x, y, z) for kLoop,
// missing axes 0. So one functor serves both orders (a product plus zero rounds like the product).
struct Point3 {
  float a, b, c;
};

// Of points that are not double.
TORCHVOX_HD float load_coordinate(const void* points, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kHalf: return widen(static_cast<const Half*>(points)[at]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(points)[at]);
    default: return static_cast<const float*>(points)[at];
  }
}

TORCHVOX_HD float dist2(float da, float db, float dc) {
  return fma_rn(dc, dc, fma_rn(db, db, da * da));
}
TORCHVOX_HD float dist2(const Point3& p, const Point3& q) {
  return dist2(p.a - q.a, p.b - q.b, p.c - q.c);
}

// By either norm, of which 1 adds its axes in an order that decides no bit.
template <int kNorm>
TORCHVOX_HD float norm_of(float da, float db, float dc) {
  if constexpr (kNorm == 1) return std::fabs(da) + std::fabs(db) + std::fabs(dc);
  return dist2(da, db, dc);
}
template <int kNorm>
TORCHVOX_HD float norm_of(const Point3& p, const Point3& q) {
  return norm_of<kNorm>(p.a - q.a, p.b - q.b, p.c - q.c);
}

// 0 inside [lo, hi], else the distance to it. Rounding is monotone, so the norm of the gaps to a
// box is at most the computed one of every point in it: skipping a box on that ground is exact.
TORCHVOX_HD float gap(float lo, float hi, float q) {
  const float below = lo - q, above = q - hi, larger = below > above ? below : above;
  return larger > 0.0f ? larger : 0.0f;
}

// x >= low to a cell below `cells`. Halves first, because high - low may overflow.
TORCHVOX_HD uint32_t cell_of(float x, float low, float scale, uint32_t cells) {
  const float at = (0.5f * x - 0.5f * low) * scale, last = static_cast<float>(cells - 1);
  return at > 0.0f ? static_cast<uint32_t>(at < last ? at : last) : 0;  // NaN (0 * inf): 0
}

// Cells per half meter of the longest side of [low, high], the one scale of all axes.
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

// Turns a cell of a cube of 2^bits cells a side, bits 0 to 31, into its place on the cube's Hilbert
// curve: the bits of the three axes interleaved, the first's highest. Cells next to each other on
// the curve share a face. (Skilling, "Programming the Hilbert curve", 2004.)
TORCHVOX_HD void to_hilbert(uint32_t (&axis)[3], int bits) {
  const uint32_t top = (uint32_t{1} << bits) >> 1;
  for (uint32_t bit = top; bit > 1; bit /= 2) {
    const uint32_t below = bit - 1;
    for (uint32_t& other : axis) {
      const bool set = other & bit;
      const uint32_t change = (axis[0] ^ other) & below;
      axis[0] ^= set ? below : change;
      other ^= set ? 0 : change;
    }
  }
  axis[1] ^= axis[0];
  axis[2] ^= axis[1];
  uint32_t flip = 0;
  for (uint32_t bit = top; bit > 1; bit /= 2) flip ^= axis[2] & bit ? bit - 1 : 0;
  for (uint32_t& each : axis) each ^= flip;
}

// The place of a cell, bits at most 10.
TORCHVOX_HD uint32_t hilbert_code(uint32_t x, uint32_t y, uint32_t z, int bits) {
  uint32_t axis[3] = {x, y, z};
  to_hilbert(axis, bits);
  return spread_bits(axis[0]) << 2 | spread_bits(axis[1]) << 1 | spread_bits(axis[2]);
}

}  // namespace torchvox
