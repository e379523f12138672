// SPDX-License-Identifier: Apache-2.0
//
// Entry of rotated_iou and its gradient, and the rule of two boxes seen from above or in space.
#pragma once

#include "csrc/kernels/boxes/rotated_overlap.h"
#include "csrc/kernels/core/entry.h"

namespace torchvox {

// Boxes [batches, rows, 7 or more] of unit column stride, strides in elements.
struct BoxArray {
  const void* data = nullptr;
  int64_t rows = 0;
  int64_t row_stride = 0, batch_stride = 0;

  template <class T>
  TORCHVOX_HD const T* row(int64_t batch, int64_t i) const {
    return static_cast<const T*>(data) + batch * batch_stride + i * row_stride;
  }
};

// What is returned of the intersection of a and b.
enum class OverlapMetric {
  kIou,  // intersection over union
  kIof,  // intersection over the size of a
  kOverlap  // intersection in m^2 or m^3
};

// The overlap of every a with every b of its batch, or of pairs.
struct RotatedIouArgs {
  BoxArray a, b;
  DType dtype = DType::kFloat;  // kFloat or kDouble, of boxes and result
  int64_t batches = 0;
  bool is_paired = false;  // a and b have as many rows
  bool is_volume = false;  // in space; else seen from above
  OverlapMetric metric = OverlapMetric::kIou;
  void* iou = nullptr;  // [batches, a rows, b rows], or [batches, rows]
};

// The gradient by the boxes, columns past the seventh zero. A box of a matrix sums over its row or
// column: 32 partial sums, of every 32nd pair each, and a tree over them.
struct RotatedIouBackwardArgs {
  RotatedIouArgs forward;
  const void* grad = nullptr;  // as iou
  int64_t a_columns = 0, b_columns = 0;
  void* grad_a = nullptr;  // [batches, a rows, a_columns]; null: not needed
  void* grad_b = nullptr;
};

TORCHVOX_KERNEL(RotatedIouArgs);
TORCHVOX_KERNEL_WITHOUT_WORKSPACE(RotatedIouBackwardArgs);

// A box with its height; from above the height does not matter.
template <class T>
struct Box3 {
  BevBox<T> bev;
  T z, half_h;
};

// A volume's box needs a height as well: without one it overlaps nothing.
template <class T>
TORCHVOX_HD Box3<T> load_box(const T* row, bool is_volume) {
  Box3<T> box{bev_box(row), row[2], row[5] * T(0.5)};
  if (!is_volume) return box;
  const T volume = box.bev.area() * (box.half_h * T(2));
  const bool exists = is_finite(box.z) && row[5] >= T(kLeastSize) && volume >= T(kLeastSize) &&
      is_finite(volume * T(2));
  if (!exists) box.bev.x = static_cast<T>(portable::not_a_number());
  return box;
}

template <class T>
TORCHVOX_HD int compare(const Box3<T>& a, const Box3<T>& b, bool is_volume) {
  const int order = compare(a.bev, b.bev);
  if (order != 0 || !is_volume) return order;
  if (a.half_h != b.half_h) return a.half_h < b.half_h ? -1 : 1;
  if (a.z != b.z) return a.z < b.z ? -1 : 1;
  return 0;
}

// The part of the window's height that the box shares, from `bottom` to `top` about its middle.
template <class T>
struct SharedHeight {
  T top, bottom;

  TORCHVOX_HD SharedHeight(const Box3<T>& window, const Box3<T>& box) {
    const T dz = box.z - window.z;
    top = at_most(window.half_h, dz + box.half_h);
    bottom = at_least(-window.half_h, dz - box.half_h);
  }
  TORCHVOX_HD T height(const Box3<T>& window) const {
    return clamp(top - bottom, T(0), window.half_h * T(2));
  }
};

template <class T>
TORCHVOX_HD T size_of(const Box3<T>& box, bool is_volume) {
  return is_volume ? box.bev.area() * (box.half_h * T(2)) : box.bev.area();
}

template <class T>
TORCHVOX_HD T pair_overlap(const Box3<T>& a, const Box3<T>& b, bool is_volume,
                           OverlapMetric metric) {
  if (!circles_meet(a.bev, b.bev)) return T(0);
  const int order = compare(a, b, is_volume);
  if (order == 0) return metric == OverlapMetric::kOverlap ? size_of(a, is_volume) : T(1);
  const Box3<T>& window = order < 0 ? a : b;
  const Box3<T>& box = order < 0 ? b : a;
  T shared = compare(a.bev, b.bev) == 0 ? window.bev.area() : window_overlap(window.bev, box.bev);
  if (is_volume) shared *= SharedHeight<T>(window, box).height(window);
  const T size = size_of(a, is_volume);
  switch (metric) {
    case OverlapMetric::kIof: return part_of(shared, size);
    case OverlapMetric::kOverlap: return shared > T(0) ? shared : T(0);
    case OverlapMetric::kIou: break;
  }
  return overlap_ratio(shared, size, size_of(b, is_volume));
}

// The part of a straight line p + s d, low <= s <= high, that remains after cuts with slabs |.| <=
// half.
template <class T>
struct LinePart {
  T low, high;

  TORCHVOX_HD void cut(T p, T d, T half) {
    if (magnitude(d) <= T(1e-30)) {
      if (magnitude(p) > half) high = low;
      return;
    }
    const T first = (-half - p) / d, second = (half - p) / d;
    low = at_least(low, at_most(first, second));
    high = at_most(high, at_least(first, second));
  }
  TORCHVOX_HD T length() const { return high > low ? high - low : T(0); }
  TORCHVOX_HD T middle() const { return T(0.5) * (low + high); }
};

// Derivatives of a pair's shared area in the frame of the window.
template <class T>
struct AreaDerivative {
  T x, y, yaw;  // of the box's pose
  T half_l, half_w;  // of the box
  T window_half_l, window_half_w;
};

// Where an edge moves outwards, the area grows by its length inside the other box.
template <class T>
TORCHVOX_HD AreaDerivative<T> area_derivative(const BevBox<T>& window, const BevBox<T>& box,
                                              const RelativeBox<T>& r) {
  AreaDerivative<T> d{};
  for (int sign = -1; sign <= 1; sign += 2) {
    const T side = static_cast<T>(sign);
    // The front and the rear: normal (cos, sin), direction (-sin, cos).
    LinePart<T> end{-box.half_w, box.half_w};
    end.cut(r.x + side * r.ux, -r.sin, window.half_l);
    end.cut(r.y + side * r.uy, r.cos, window.half_w);
    d.x += side * end.length() * r.cos;
    d.y += side * end.length() * r.sin;
    d.yaw -= side * end.length() * end.middle();
    d.half_l += end.length();
    // The left and the right: normal (-sin, cos), direction (cos, sin).
    LinePart<T> flank{-box.half_l, box.half_l};
    flank.cut(r.x + side * r.vx, r.cos, window.half_l);
    flank.cut(r.y + side * r.vy, r.sin, window.half_w);
    d.x -= side * flank.length() * r.sin;
    d.y += side * flank.length() * r.cos;
    d.yaw += side * flank.length() * flank.middle();
    d.half_w += flank.length();
    // The window's own edges, in the frame of the box.
    const T ex = side * window.half_l - r.x, ey = side * window.half_w - r.y;
    LinePart<T> front{-window.half_w, window.half_w};
    front.cut(ex * r.cos - r.y * r.sin, r.sin, box.half_l);
    front.cut(-ex * r.sin - r.y * r.cos, r.cos, box.half_w);
    d.window_half_l += front.length();
    LinePart<T> left{-window.half_l, window.half_l};
    left.cut(ey * r.sin - r.x * r.cos, r.cos, box.half_l);
    left.cut(ey * r.cos + r.x * r.sin, -r.sin, box.half_w);
    d.window_half_w += left.length();
  }
  return d;
}

// A derivative with respect to the columns of a box.
template <class T>
struct BoxGradient {
  T at[kBoxColumns];
};

template <class T>
struct PairGradient {
  BoxGradient<T> window, box;
};

// Gradient of the shared size, which is shared_area * height (height is 1 seen from above).
template <class T>
TORCHVOX_HD PairGradient<T> shared_gradient(const Box3<T>& window, const Box3<T>& box,
                                            T shared_area, T height, bool is_volume) {
  const RelativeBox<T> r = relative_box(window.bev, box.bev);
  const AreaDerivative<T> d = area_derivative(window.bev, box.bev, r);
  const T x = d.x * window.bev.cos - d.y * window.bev.sin;
  const T y = d.x * window.bev.sin + d.y * window.bev.cos;
  PairGradient<T> g{};
  g.box.at[0] = height * x;
  g.box.at[1] = height * y;
  g.box.at[3] = height * (T(0.5) * d.half_l);
  g.box.at[4] = height * (T(0.5) * d.half_w);
  g.box.at[6] = height * d.yaw;
  g.window.at[0] = -g.box.at[0];
  g.window.at[1] = -g.box.at[1];
  g.window.at[3] = height * (T(0.5) * d.window_half_l);
  g.window.at[4] = height * (T(0.5) * d.window_half_w);
  g.window.at[6] = height * ((d.x * r.y - d.y * r.x) - d.yaw);
  if (!is_volume) return g;
  const SharedHeight<T> shared(window, box);
  const bool own_top = shared.top == window.half_h, own_bottom = shared.bottom == -window.half_h;
  const T dz = shared_area * ((own_top ? T(0) : T(1)) - (own_bottom ? T(0) : T(1)));
  g.box.at[2] = dz;
  g.window.at[2] = -dz;
  g.window.at[5] = shared_area * (T(0.5) * ((own_top ? T(1) : T(0)) + (own_bottom ? T(1) : T(0))));
  g.box.at[5] = shared_area * (T(0.5) * ((own_top ? T(0) : T(1)) + (own_bottom ? T(0) : T(1))));
  return g;
}

// d size / d (l, w, h).
template <class T>
TORCHVOX_HD void add_size_gradient(BoxGradient<T>& g, const Box3<T>& box, bool is_volume,
                                   T factor) {
  const T l = box.bev.half_l * T(2), w = box.bev.half_w * T(2), h = box.half_h * T(2);
  g.at[3] += factor * (is_volume ? w * h : w);
  g.at[4] += factor * (is_volume ? l * h : l);
  if (is_volume) g.at[5] += factor * (l * w);
}

// The derivatives of a metric with respect to the shared size and to the sizes of a and b.
template <class T>
struct MetricDerivative {
  T by_shared, by_a, by_b;

  TORCHVOX_HD MetricDerivative(OverlapMetric metric, T shared, T size_a, T size_b)
      : by_shared(1), by_a(0), by_b(0) {
    if (metric == OverlapMetric::kIof) {
      by_shared = T(1) / size_a;
      by_a = -(shared / size_a / size_a);
    } else if (metric == OverlapMetric::kIou) {
      const T sizes = size_a + size_b, joint = sizes - shared;
      by_shared = sizes / joint / joint;
      by_a = by_b = -(shared / joint / joint);
    }
  }
};

// The gradient of pair_overlap, times `grad`, with respect to the columns of a and of b. Returns
// false where it is zero, as for boxes that do not overlap. For identical boxes it is the mean of
// the slopes of growing and shrinking: half of what a box gains in size is shared. That of the IoU
// is zero.
template <class T>
TORCHVOX_HD bool pair_gradient(const Box3<T>& a, const Box3<T>& b, bool is_volume,
                               OverlapMetric metric, T grad, BoxGradient<T>& grad_a,
                               BoxGradient<T>& grad_b) {
  if (!circles_meet(a.bev, b.bev)) return false;
  const int order = compare(a, b, is_volume);
  const T size_a = size_of(a, is_volume), size_b = size_of(b, is_volume);
  if (order == 0) {
    if (metric == OverlapMetric::kIou) return false;
    const MetricDerivative<T> d(metric, size_a, size_a, size_b);
    grad_a = grad_b = BoxGradient<T>{};
    add_size_gradient(grad_a, a, is_volume, grad * (T(0.5) * d.by_shared + d.by_a));
    add_size_gradient(grad_b, b, is_volume, grad * (T(0.5) * d.by_shared + d.by_b));
    return true;
  }
  const Box3<T>& window = order < 0 ? a : b;
  const Box3<T>& box = order < 0 ? b : a;
  const T area =
      compare(a.bev, b.bev) == 0 ? window.bev.area() : window_overlap(window.bev, box.bev);
  const T height = is_volume ? SharedHeight<T>(window, box).height(window) : T(1);
  const T shared = area * height;
  if (!(shared > T(0))) return false;
  const MetricDerivative<T> d(metric, shared, size_a, size_b);
  PairGradient<T> g = shared_gradient(window, box, area, height, is_volume);
  for (int c = 0; c < kBoxColumns; ++c) {
    g.window.at[c] *= grad * d.by_shared;
    g.box.at[c] *= grad * d.by_shared;
  }
  grad_a = order < 0 ? g.window : g.box;
  grad_b = order < 0 ? g.box : g.window;
  add_size_gradient(grad_a, a, is_volume, grad * d.by_a);
  add_size_gradient(grad_b, b, is_volume, grad * d.by_b);
  return true;
}

inline constexpr int kPartialSums = 32;

template <class T>
TORCHVOX_HD Box3<T> load_box(const RotatedIouArgs& args, const BoxArray& boxes, int64_t batch,
                             int64_t i) {
  return load_box(boxes.row<T>(batch, i), args.is_volume);
}

// One box of a matrix call, whose gradient is a sum over the boxes of the other side.
template <class T>
struct GradientRow {
  const RotatedIouBackwardArgs& args;
  bool of_a;
  int64_t batch, row;

  TORCHVOX_HD const BoxArray& own() const { return of_a ? args.forward.a : args.forward.b; }
  TORCHVOX_HD const BoxArray& others() const { return of_a ? args.forward.b : args.forward.a; }

  // Adds the pair with the other side's box k to a partial sum.
  TORCHVOX_HD void add(const Box3<T>& mine, int64_t k, BoxGradient<T>& sum) const {
    const RotatedIouArgs& f = args.forward;
    const int64_t i = of_a ? row : k, j = of_a ? k : row;
    const T grad = static_cast<const T*>(args.grad)[(batch * f.a.rows + i) * f.b.rows + j];
    const Box3<T> other = load_box<T>(f, others(), batch, k);
    BoxGradient<T> by_a, by_b;
    if (!pair_gradient(of_a ? mine : other, of_a ? other : mine, f.is_volume, f.metric, grad, by_a,
                       by_b)) {
      return;
    }
    for (int c = 0; c < kBoxColumns; ++c) sum.at[c] += of_a ? by_a.at[c] : by_b.at[c];
  }
  TORCHVOX_HD void write(const BoxGradient<T>& sum) const {
    const int64_t columns = of_a ? args.a_columns : args.b_columns;
    T* const out =
        static_cast<T*>(of_a ? args.grad_a : args.grad_b) + (batch * own().rows + row) * columns;
    for (int64_t c = 0; c < columns; ++c) out[c] = c < kBoxColumns ? quiet(sum.at[c]) : T(0);
  }
};

// Writes pair i of a paired call, and the gradient of its boxes.
template <class T>
TORCHVOX_HD void pair_element(const RotatedIouArgs& args, int64_t i) {
  const int64_t batch = i / args.a.rows, row = i % args.a.rows;
  static_cast<T*>(args.iou)[i] =
      pair_overlap(load_box<T>(args, args.a, batch, row), load_box<T>(args, args.b, batch, row),
                   args.is_volume, args.metric);
}
template <class T>
TORCHVOX_HD void pair_gradient_element(const RotatedIouBackwardArgs& args, int64_t i) {
  const RotatedIouArgs& f = args.forward;
  const int64_t batch = i / f.a.rows, row = i % f.a.rows;
  BoxGradient<T> by_a{}, by_b{};
  const T grad = static_cast<const T*>(args.grad)[i];
  const Box3<T> a = load_box<T>(f, f.a, batch, row), b = load_box<T>(f, f.b, batch, row);
  pair_gradient(a, b, f.is_volume, f.metric, grad, by_a, by_b);
  if (args.grad_a) GradientRow<T>{args, true, batch, row}.write(by_a);
  if (args.grad_b) GradientRow<T>{args, false, batch, row}.write(by_b);
}

}  // namespace torchvox
