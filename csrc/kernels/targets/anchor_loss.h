// SPDX-License-Identifier: Apache-2.0
//
// Entry of anchor_loss and its gradient, and the terms of one anchor:
//
//   class_term       focal loss of a logit
//   box_term         smooth L1 of a residual, whose target is in residuals_of()
//   direction_term   cross entropy of the two bins
//
// Terms are computed in float, for maps of double in double. Sums over the anchors of a sample are
// taken in double over a tree that depends on the number of anchors alone: see kTreeValues.
#pragma once

#include <cmath>

#include "csrc/kernels/boxes/rotated_iou.h"
#include "csrc/kernels/core/portable_double.h"

namespace torchvox {

inline constexpr int kMostCodes = 10;  // regressed values of an anchor
inline constexpr int kLossTerms = 3;  // classes, boxes, directions
inline constexpr int32_t kBackgroundBox = -1;  // below it: the anchor is ignored

// A map of a detection head seen as [batches, height, width, anchors, values] by its strides.
struct LossMap {
  void* data = nullptr;
  int64_t stride[5] = {};  // in elements

  // Offset of the first value of an anchor.
  TORCHVOX_HD int64_t at(int64_t batch, int64_t y, int64_t x, int64_t a) const {
    return batch * stride[0] + y * stride[1] + x * stride[2] + a * stride[3];
  }
};

struct AnchorLossArgs {
  LossMap cls, box, direction;  // direction.data: null where there is none
  DType dtype = DType::kFloat;  // of the maps
  int64_t batches = 0, height = 0, width = 0, per_cell = 0;
  int64_t classes = 0;
  int codes = 7;  // 7 values, or 8 with cos, sin instead of the angle; 2 more with a velocity
  const float* anchors = nullptr;  // [height, width, per_cell, 7] meters, radians; contiguous
  BoxArray boxes;  // float [batches, rows, 7, with a velocity 9, or more]
  IndexArray labels;  // [batches, rows]
  const int32_t* assigned = nullptr;  // [batches, height, width, per_cell]: box, or see AnchorPlace
  double dir_offset = 0, dir_limit = 0;  // radians; share of a turn
  double code_weights[kMostCodes] = {};
  bool weighs_loss = false;  // code weights multiply the loss, not the difference
  double beta = 0;  // of smooth L1: differences below are squared
  double negative_weight = 1;  // of the class terms of background anchors
  void* loss = nullptr;  // [batches, 3]

  TORCHVOX_HD int64_t num_anchors() const { return height * width * per_cell; }
  TORCHVOX_HD bool angle_as_pair() const { return codes % 2 == 0; }
  TORCHVOX_HD int velocity_from() const { return angle_as_pair() ? 8 : 7; }
};

struct AnchorLossBackwardArgs {
  AnchorLossArgs forward;
  const void* grad = nullptr;  // [batches, 3], of the type of `loss`
  LossMap cls, box, direction;  // gradients, of the type of the maps
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(AnchorLossBackwardArgs);

// ---- Terms ------------------------------------------------------------------------------------

// A term and its derivative by the value of the map.
template <class T>
struct Term {
  T loss, slope;
};

// log(1 + e) of 0 <= e <= 1, within 1.3 ulp. In double a first-order term makes up for the rounding
// of 1 + e.
TORCHVOX_HD float log_one_plus(float e) {
  const float p = portable::polynomial(e, -3.32255266e-3f, 2.02217847e-2f, -5.76944873e-2f,
                                       1.06833652e-1f, -1.53569132e-1f, 1.96958750e-1f,
                                       -2.49586686e-1f, 3.33305180e-1f, -4.99999344e-1f);
  return fma_rn(p, e * e, e);
}
TORCHVOX_HD double log_one_plus(double e) {
  const double whole = 1.0 + e;
  return portable::log(whole) + (e - (whole - 1.0)) / whole;
}

// 1 / (1 + exp(-x)), its complement and log(1 + exp(x)), from one exponential and one quotient.
template <class T>
struct Logistic {
  T value, complement, softplus;

  TORCHVOX_HD explicit Logistic(T x) {
    const T e = portable::exp(x < T(0) ? x : -x), most = T(1) / (T(1) + e), least = e * most;
    value = x < T(0) ? least : most;
    complement = x < T(0) ? most : least;
    softplus = (x > T(0) ? x : T(0)) + log_one_plus(e);
  }
};

// Focal loss, alpha 1/4, gamma 2 (Lin et al. 2017), of a class that is the anchor's (`hit`) or not.
// Both cases are one increasing function, of -logit or logit.
template <class T>
TORCHVOX_HD Term<T> class_term(T logit, bool hit, T weight) {
  const Logistic<T> wrong(hit ? -logit : logit);
  const T scale = (hit ? T(0.25) : T(0.75)) * weight * (wrong.value * wrong.value);
  const T slope = scale * (T(2) * wrong.complement * wrong.softplus + wrong.value);
  return {scale * wrong.softplus, hit ? -slope : slope};
}

// Smooth L1 of entry k: of value - target, or for angles, of the sine of that difference.
template <class T>
TORCHVOX_HD Term<T> box_term(const AnchorLossArgs& args, int k, T value, T target) {
  if (k >= args.velocity_from() && is_nan(target)) return {T(0), T(0)};  // unknown
  T difference = value - target, by_value = T(1);
  if (k == 6 && args.direction.data != nullptr && !args.angle_as_pair()) {
    const auto p = portable::sin_cos(value), t = portable::sin_cos(target);
    difference = p.sin * t.cos - p.cos * t.sin;
    by_value = p.cos * t.cos + p.sin * t.sin;
  }
  const T weight = static_cast<T>(args.code_weights[k]), beta = static_cast<T>(args.beta);
  if (!args.weighs_loss) difference *= weight;
  const T size = magnitude(difference);
  const bool is_smooth = size < beta;
  const T loss = is_smooth ? T(0.5) * size * size / beta : size - T(0.5) * beta;
  const T sign = difference > T(0) ? T(1) : (difference < T(0) ? T(-1) : difference);
  const T slope = (is_smooth ? difference / beta : sign) * weight * by_value;
  return {args.weighs_loss ? loss * weight : loss, slope};
}

// Cross entropy of the logits of two bins, `own` that of the box; the slope is by `other`.
template <class T>
TORCHVOX_HD Term<T> direction_term(T own, T other) {
  const Logistic<T> wrong(other - own);
  return {wrong.softplus, wrong.value};
}

// ---- Targets ----------------------------------------------------------------------------------

// The residuals of a box and its direction bin.
template <class T>
struct Residuals {
  T at[kMostCodes];
  int bin;
};

template <class T>
TORCHVOX_HD Residuals<T> residuals_of(const AnchorLossArgs& args, const float* box,
                                      const float* anchor) {
  const auto size = [](const float* row, int k) { return static_cast<T>(at_least(row[k], 1e-5f)); };
  const auto apart = [&](int k) { return static_cast<T>(box[k]) - static_cast<T>(anchor[k]); };
  const T length = size(anchor, 3), width = size(anchor, 4);
  const T diagonal = root(length * length + width * width), turn = apart(6);
  Residuals<T> code{};
  code.at[0] = apart(0) / diagonal;
  code.at[1] = apart(1) / diagonal;
  code.at[2] = apart(2) / size(anchor, 5);
  for (int k = 3; k < 6; ++k) code.at[k] = portable::log(size(box, k) / size(anchor, k));
  int next = 6;
  if (args.angle_as_pair()) {
    const auto own = portable::sin_cos(static_cast<T>(box[6]));
    const auto base = portable::sin_cos(static_cast<T>(anchor[6]));
    code.at[next++] = own.cos - base.cos;
    code.at[next++] = own.sin - base.sin;
  } else {
    code.at[next++] = turn;
  }
  if (next < args.codes) {
    code.at[next++] = static_cast<T>(box[7]);
    code.at[next] = static_cast<T>(box[8]);
  }
  const T full = static_cast<T>(6.283185307179586), half = static_cast<T>(3.141592653589793);
  T yaw = turn + static_cast<T>(anchor[6]) - static_cast<T>(args.dir_offset);
  yaw -= std::floor(yaw / full + static_cast<T>(args.dir_limit)) * full;
  code.bin = yaw / half >= T(1);
  return code;
}

// ---- One anchor -------------------------------------------------------------------------------

// Anchor i of a sample, (y, x, a) in row-major order.
struct AnchorPlace {
  int64_t batch, y, x, a;
  int32_t box;  // -1: background; below: ignored
  const float* anchor;

  TORCHVOX_HD AnchorPlace(const AnchorLossArgs& args, int64_t sample, int64_t i) : batch(sample) {
    const int64_t cell = divide(i, args.per_cell);
    a = i - cell * args.per_cell;
    y = divide(cell, args.width);
    x = cell - y * args.width;
    box = args.assigned[batch * args.num_anchors() + i];
    if (box >= args.boxes.rows) box = -2;
    anchor = args.anchors + i * kBoxColumns;
  }
  TORCHVOX_HD int64_t at(const LossMap& map) const { return map.at(batch, y, x, a); }
};

template <class M>
TORCHVOX_HD compute_t<M> load_value(const LossMap& map, int64_t at, int64_t k) {
  return widen(static_cast<const M*>(map.data)[at + k * map.stride[4]]);
}
template <class M>
TORCHVOX_HD void store_value(const LossMap& map, int64_t at, int64_t k, compute_t<M> value) {
  static_cast<M*>(map.data)[at + k * map.stride[4]] = narrow<M>(quiet(value));
}

template <class T>
struct AnchorTerms {
  T at[kLossTerms];
};

// M is the type of the maps. Only values that matter are read: none of an ignored anchor, and only
// classes of a background one.
template <class M>
TORCHVOX_HD AnchorTerms<compute_t<M>> anchor_terms(const AnchorLossArgs& args,
                                                   const AnchorPlace& place) {
  using T = compute_t<M>;
  AnchorTerms<T> sum{};
  if (place.box < kBackgroundBox) return sum;
  const bool positive = place.box >= 0;
  const int64_t label = positive ? args.labels[place.batch * args.boxes.rows + place.box] : -1;
  const T weight = positive ? T(1) : static_cast<T>(args.negative_weight);
  const int64_t cls = place.at(args.cls);
  for (int64_t c = 0; c < args.classes; ++c) {
    sum.at[0] += class_term(load_value<M>(args.cls, cls, c), c == label, weight).loss;
  }
  if (!positive) return sum;
  const Residuals<T> code =
      residuals_of<T>(args, args.boxes.row<float>(place.batch, place.box), place.anchor);
  const int64_t box = place.at(args.box);
  for (int k = 0; k < args.codes; ++k) {
    sum.at[1] += box_term(args, k, load_value<M>(args.box, box, k), code.at[k]).loss;
  }
  if (args.direction.data != nullptr) {
    const int64_t direction = place.at(args.direction);
    const T own = load_value<M>(args.direction, direction, code.bin);
    const T other = load_value<M>(args.direction, direction, 1 - code.bin);
    sum.at[2] = direction_term(own, other).loss;
  }
  return sum;
}

// Writes the gradient of every value of an anchor.
template <class M>
TORCHVOX_HD void anchor_gradient(const AnchorLossBackwardArgs& args, const AnchorPlace& place) {
  using T = compute_t<M>;
  const AnchorLossArgs& forward = args.forward;
  const T* const grad = static_cast<const T*>(args.grad) + place.batch * kLossTerms;
  const bool counts = place.box >= kBackgroundBox, positive = place.box >= 0;
  const int64_t label =
      positive ? forward.labels[place.batch * forward.boxes.rows + place.box] : -1;
  const T weight = positive ? T(1) : static_cast<T>(forward.negative_weight);
  const int64_t cls = place.at(forward.cls), grad_cls = place.at(args.cls);
  for (int64_t c = 0; c < forward.classes; ++c) {
    T slope = 0;
    if (counts) {
      slope = grad[0] * class_term(load_value<M>(forward.cls, cls, c), c == label, weight).slope;
    }
    store_value<M>(args.cls, grad_cls, c, slope);
  }
  const bool turns = forward.direction.data != nullptr;
  const int64_t grad_box = place.at(args.box);
  const int64_t grad_at = turns ? place.at(args.direction) : 0;
  if (!positive) {  // nearly all anchors: they read no boxes
    for (int k = 0; k < forward.codes; ++k) store_value<M>(args.box, grad_box, k, T(0));
    for (int k = 0; turns && k < 2; ++k) store_value<M>(args.direction, grad_at, k, T(0));
    return;
  }
  const float* const row = forward.boxes.row<float>(place.batch, place.box);
  const Residuals<T> code = residuals_of<T>(forward, row, place.anchor);
  const int64_t box = place.at(forward.box);
  for (int k = 0; k < forward.codes; ++k) {
    const T value = load_value<M>(forward.box, box, k);
    store_value<M>(args.box, grad_box, k, grad[1] * box_term(forward, k, value, code.at[k]).slope);
  }
  if (!turns) return;
  const int64_t at = place.at(forward.direction);
  const T own = load_value<M>(forward.direction, at, code.bin);
  const T other = load_value<M>(forward.direction, at, 1 - code.bin);
  const T slope = grad[2] * direction_term(own, other).slope;
  store_value<M>(args.direction, grad_at, code.bin, -slope);
  store_value<M>(args.direction, grad_at, 1 - code.bin, slope);
}

// ---- Sums -------------------------------------------------------------------------------------

// Values are summed 256 neighbors at a time, padded with zeros, by halves: value k of the first 128
// is added to value k of the next 128, then the same with 64, and so on. Then the sums of such
// blocks are summed in the same way, until one is left.
inline constexpr int kTreeValues = 256;

TORCHVOX_HD int64_t tree_blocks(int64_t values) { return (values + kTreeValues - 1) / kTreeValues; }

struct LossScratch {
  double* sums;  // [batches, 3, blocks of anchors]
  int64_t blocks;

  LossScratch(const AnchorLossArgs& args, Workspace& workspace)
      : sums(workspace.take<double>(args.batches * kLossTerms * tree_blocks(args.num_anchors()))),
        blocks(tree_blocks(args.num_anchors())) {}
};

TORCHVOX_KERNEL_WITH_WORKSPACE(AnchorLossArgs, carved_bytes<LossScratch>(args));

// Stores sum i of [batches, 3].
template <class M>
TORCHVOX_HD void write_loss(const AnchorLossArgs& args, int64_t i, double sum) {
  static_cast<compute_t<M>*>(args.loss)[i] = quiet(static_cast<compute_t<M>>(sum));
}

}  // namespace torchvox
