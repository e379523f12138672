// SPDX-License-Identifier: Apache-2.0
//
// Squared distances in one of two orders of rounding, the gap to a box that bounds them from below,
// and the cells of a cube around a cloud.
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

}  // namespace torchvox
