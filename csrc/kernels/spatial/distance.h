// SPDX-License-Identifier: Apache-2.0
//
// Squared distances in one of two orders of rounding, and the gap to a box that bounds them.
#pragma once

#include "csrc/kernels/core/arith.h"

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

TORCHVOX_HD float dist2(float da, float db, float dc) {
  return fma_rn(dc, dc, fma_rn(db, db, da * da));
}
TORCHVOX_HD float dist2(const Point3& p, const Point3& q) {
  return dist2(p.a - q.a, p.b - q.b, p.c - q.c);
}

// 0 inside [lo, hi], else the distance to it. Rounding is monotone, so dist2 of the gaps to a box
// is at most the computed dist2 of every point in it: skipping a box on that ground is exact.
TORCHVOX_HD float gap(float lo, float hi, float q) {
  const float below = lo - q;
  const float above = q - hi;
  const float larger = below > above ? below : above;
  return larger > 0.0f ? larger : 0.0f;
}

}  // namespace torchvox
