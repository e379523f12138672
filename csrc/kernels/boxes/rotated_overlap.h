// SPDX-License-Identifier: Apache-2.0
//
// How much two rotated rectangles overlap: the one rule of rotated_iou and of every NMS.
//
// The pair is put in an order of its own, so that the result is the same whichever box comes first,
// and the second box is moved into the frame of the first, the smaller one: distances to the origin
// do not matter. There the first box is the window [-X, X] x [-Y, Y], and the overlap is the sum,
// over the edges of the second box, of the integral of clamp(y, -Y, Y) dx within the window. Each
// edge is a convex combination of clamped values: rounding moves the result by rounding errors
// whatever touches or coincides with whatever, and there is no list of corners to sort.
#pragma once

#include <cmath>

#include "csrc/kernels/core/portable_math.h"

namespace torchvox {

// A box with a side, area or volume below this (m, m^2, m^3) counts as empty: products of it would
// be subnormal or zero, in the overlap (float) or in the gradient.
inline constexpr double kLeastSize = 1e-30;

// Seen from above, in meters and radians. A box without area (a size below the least, a value that
// is not finite) has x = NaN: it overlaps nothing.
template <class T>
struct BevBox {
  T x, y, half_l, half_w, cos, sin, yaw, radius;

  TORCHVOX_HD T area() const { return half_l * half_w * T(4); }
};

// Columns of a box [x, y, z, l, w, h, yaw, ..].
inline constexpr int kBoxColumns = 7;

TORCHVOX_HD float at_least(float a, float b) {
#ifdef __CUDA_ARCH__
  return fmaxf(a, b);
#else
  return a > b ? a : b;
#endif
}
TORCHVOX_HD float at_most(float a, float b) {
#ifdef __CUDA_ARCH__
  return fminf(a, b);
#else
  return a < b ? a : b;
#endif
}
TORCHVOX_HD double at_least(double a, double b) { return a > b ? a : b; }
TORCHVOX_HD double at_most(double a, double b) { return a < b ? a : b; }
template <class T>
TORCHVOX_HD T clamp(T x, T low, T high) {
  return at_least(at_most(x, high), low);
}
template <class T>
TORCHVOX_HD T magnitude(T x) {
  return x < T(0) ? -x : x;
}

template <class T>
TORCHVOX_HD BevBox<T> bev_box(const T* row) {
  BevBox<T> box;
  box.x = row[0];
  box.y = row[1];
  box.half_l = row[3] * T(0.5);
  box.half_w = row[4] * T(0.5);
  box.yaw = row[6];
  const auto turn = portable::sin_cos(box.yaw);
  box.cos = turn.cos;
  box.sin = turn.sin;
  box.radius = root(box.half_l * box.half_l + box.half_w * box.half_w);
  const T area = box.area();
  const bool exists = is_finite(box.x) && is_finite(box.y) && is_finite(box.yaw) &&
      row[3] >= T(kLeastSize) && row[4] >= T(kLeastSize) && area >= T(kLeastSize) &&
      is_finite(area * T(2));
  if (!exists) box.x = static_cast<T>(portable::not_a_number());
  return box;
}

// Whether the circles around two boxes meet; false for a box without area.
template <class T>
TORCHVOX_HD bool circles_meet(const BevBox<T>& a, const BevBox<T>& b) {
  const T dx = b.x - a.x, dy = b.y - a.y, reach = a.radius + b.radius;
  return dx * dx + dy * dy <= reach * reach;
}

// Order of a pair: -1 if a is the window, 1 if b is, 0 if the boxes are identical.
template <class T>
TORCHVOX_HD int compare(const BevBox<T>& a, const BevBox<T>& b) {
  const T area_a = a.area(), area_b = b.area();
  if (area_a != area_b) return area_a < area_b ? -1 : 1;
  if (a.half_l != b.half_l) return a.half_l < b.half_l ? -1 : 1;
  if (a.half_w != b.half_w) return a.half_w < b.half_w ? -1 : 1;
  if (a.x != b.x) return a.x < b.x ? -1 : 1;
  if (a.y != b.y) return a.y < b.y ? -1 : 1;
  if (a.yaw != b.yaw) return a.yaw < b.yaw ? -1 : 1;
  return 0;
}

// The second box of a pair in the frame of the first.
template <class T>
struct RelativeBox {
  T x, y;  // center
  T cos, sin;
  T ux, uy, vx, vy;  // half of its length, half of its width, as vectors
};

template <class T>
TORCHVOX_HD RelativeBox<T> relative_box(const BevBox<T>& window, const BevBox<T>& box) {
  const T dx = box.x - window.x, dy = box.y - window.y;
  RelativeBox<T> r;
  r.x = dx * window.cos + dy * window.sin;
  r.y = dy * window.cos - dx * window.sin;
  const bool parallel = box.yaw == window.yaw;
  r.cos = parallel ? T(1) : box.cos * window.cos + box.sin * window.sin;
  r.sin = parallel ? T(0) : box.sin * window.cos - box.cos * window.sin;
  r.ux = box.half_l * r.cos;
  r.uy = box.half_l * r.sin;
  r.vx = -box.half_w * r.sin;
  r.vy = box.half_w * r.cos;
  return r;
}

// Whether an axis of either box separates the two; touching boxes are separated.
template <class T>
TORCHVOX_HD bool is_separated(const BevBox<T>& window, const BevBox<T>& box,
                              const RelativeBox<T>& r) {
  const T c = magnitude(r.cos), s = magnitude(r.sin);
  const T along = r.x * r.cos + r.y * r.sin, across = r.y * r.cos - r.x * r.sin;
  return magnitude(r.x) >= window.half_l + (magnitude(r.ux) + magnitude(r.vx)) ||
      magnitude(r.y) >= window.half_w + (magnitude(r.uy) + magnitude(r.vy)) ||
      magnitude(along) >= box.half_l + (window.half_l * c + window.half_w * s) ||
      magnitude(across) >= box.half_w + (window.half_l * s + window.half_w * c);
}

// The integral of clamp(y, -half_w, half_w) dx along the edge from (px, py) to (qx, qy), within |x|
// <= half_l. dy is the rise of the edge and inverse is 1 / dx, or 0 for a vertical edge.
template <class T>
TORCHVOX_HD T edge_integral(const BevBox<T>& window, T px, T py, T qx, T qy, T dy, T inverse) {
  const T ax = clamp(px, -window.half_l, window.half_l);
  const T bx = clamp(qx, -window.half_l, window.half_l);
  const T ay = py + clamp((ax - px) * inverse, T(0), T(1)) * dy;
  const T by = qy + clamp((bx - qx) * inverse, T(-1), T(0)) * dy;
  const T ac = clamp(ay, -window.half_w, window.half_w);
  const T bc = clamp(by, -window.half_w, window.half_w);
  // Before the window, within and beyond it: three weights of one sign that add up to `rise`.
  const T rise = by - ay;
  const T sum = (ac - ay) * ac + (bc - ac) * (T(0.5) * (ac + bc)) + (by - bc) * bc;
  return (bx - ax) * (ac == bc ? ac : sum / rise);
}

template <class T>
TORCHVOX_HD T inverse_or_zero(T x) {
  return magnitude(x) > T(1e-30) ? T(1) / x : T(0);
}

// The area that `window` and `box` share, in m^2; `window` is the first of the pair.
template <class T>
TORCHVOX_HD T window_overlap(const BevBox<T>& window, const BevBox<T>& box) {
  const RelativeBox<T> r = relative_box(window, box);
  if (is_separated(window, box, r)) return T(0);
  // Corners counterclockwise: rear right, front right, front left, rear left.
  const T x0 = r.x - r.ux - r.vx, y0 = r.y - r.uy - r.vy;
  const T x1 = r.x + r.ux - r.vx, y1 = r.y + r.uy - r.vy;
  const T x2 = r.x + r.ux + r.vx, y2 = r.y + r.uy + r.vy;
  const T x3 = r.x - r.ux + r.vx, y3 = r.y - r.uy + r.vy;
  const T lx = T(2) * r.ux, ly = T(2) * r.uy, wx = T(2) * r.vx, wy = T(2) * r.vy;
  const T il = inverse_or_zero(lx), iw = inverse_or_zero(wx);
  const T lengths =
      edge_integral(window, x3, y3, x2, y2, ly, il) - edge_integral(window, x0, y0, x1, y1, ly, il);
  const T widths =
      edge_integral(window, x0, y0, x3, y3, wy, iw) - edge_integral(window, x1, y1, x2, y2, wy, iw);
  const T area = lengths + widths;
  return area > T(0) ? at_most(area, window.area()) : T(0);
}

// The area that two boxes share, the same for (a, b) and (b, a).
template <class T>
TORCHVOX_HD T rotated_overlap(const BevBox<T>& a, const BevBox<T>& b) {
  if (!circles_meet(a, b)) return T(0);
  const int order = compare(a, b);
  if (order == 0) return a.area();
  return order < 0 ? window_overlap(a, b) : window_overlap(b, a);
}

// The fraction of an area or volume that is shared, in [0, 1].
template <class T>
TORCHVOX_HD T part_of(T shared, T size) {
  if (!(shared > T(0))) return T(0);
  const T ratio = shared / size;
  return ratio < T(1) ? ratio : (ratio >= T(1) ? T(1) : T(0));  // not a number: 0
}

// Intersection over union of areas or volumes.
template <class T>
TORCHVOX_HD T overlap_ratio(T shared, T size_a, T size_b) {
  return part_of(shared, size_a + size_b - shared);
}

// Intersection over union seen from above: in [0, 1], 1 for identical boxes.
template <class T>
TORCHVOX_HD T rotated_iou_bev(const BevBox<T>& a, const BevBox<T>& b) {
  return overlap_ratio(rotated_overlap(a, b), a.area(), b.area());
}

}  // namespace torchvox
