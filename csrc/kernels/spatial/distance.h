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

// One coordinate of points that are not double.
TORCHVOX_HD float load_coordinate(const void* points, DType dtype, int64_t at) {
  switch (dtype) {
    case DType::kHalf: return widen(static_cast<const Half*>(points)[at]);
    case DType::kBFloat16: return widen(static_cast<const BFloat16*>(points)[at]);
    default: return static_cast<const float*>(points)[at];
  }
}

// The axes of a row whose coordinates begin at element `at`, in summation order. Not double.
TORCHVOX_HD Point3 load_axes(const CloudBatch& points, DistOrder order, const void* rows,
                             int64_t at) {
  const float x = points.columns > 0 ? load_coordinate(rows, points.dtype, at) : 0.0f;
  const float y = points.columns > 1 ? load_coordinate(rows, points.dtype, at + 1) : 0.0f;
  const float z = points.columns > 2 ? load_coordinate(rows, points.dtype, at + 2) : 0.0f;
  return order == DistOrder::kPn2 ? Point3{y, x, z} : Point3{x, y, z};
}

TORCHVOX_HD bool is_finite(const Point3& p) {
  return is_finite(p.a) && is_finite(p.b) && is_finite(p.c);
}

TORCHVOX_HD float dist2(float da, float db, float dc) {
  return fma_rn(dc, dc, fma_rn(db, db, da * da));
}
TORCHVOX_HD float dist2(const Point3& p, const Point3& q) {
  return dist2(p.a - q.a, p.b - q.b, p.c - q.c);
}

// Squared distance (norm 2), or the sum of the absolute differences (norm 1).
template <int kNorm>
TORCHVOX_HD float norm_of(float da, float db, float dc) {
  if constexpr (kNorm == 1) return std::fabs(da) + std::fabs(db) + std::fabs(dc);
  return dist2(da, db, dc);
}
template <int kNorm>
TORCHVOX_HD float norm_of(const Point3& p, const Point3& q) {
  return norm_of<kNorm>(p.a - q.a, p.b - q.b, p.c - q.c);
}

// Rows of any dtype and number of columns, straight from memory.
template <class T>
TORCHVOX_HD bool is_finite_row(const T* row, int64_t columns) {
  for (int64_t axis = 0; axis < columns; ++axis) {
    if (!is_finite(widen(row[axis]))) return false;
  }
  return true;
}
template <class T>
TORCHVOX_HD compute_t<T> dist2_rows(DistOrder order, int64_t columns, const T* p, const T* q) {
  using C = compute_t<T>;
  if (order == DistOrder::kPn2) {
    const C dx = widen(p[0]) - widen(q[0]), dy = widen(p[1]) - widen(q[1]),
            dz = widen(p[2]) - widen(q[2]);
    return fma_rn(dz, dz, fma_rn(dx, dx, dy * dy));
  }
  C sum = 0;
  for (int64_t axis = 0; axis < columns; ++axis) {
    const C d = widen(p[axis]) - widen(q[axis]);
    sum = fma_rn(d, d, sum);
  }
  return sum;
}

// 0 inside [lo, hi], else the distance to it. Rounding is monotone, so the norm of the gaps to a
// box is at most the computed distance to every point in it: skipping a box by it is exact.
TORCHVOX_HD float gap(float lo, float hi, float q) {
  const float below = lo - q, above = q - hi, larger = below > above ? below : above;
  return larger > 0.0f ? larger : 0.0f;
}

// The cell of x >= low, below `cells`. Halves come first because high - low may overflow.
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
