// SPDX-License-Identifier: Apache-2.0
//
// Entry of anchor_targets, and its rules. Steps, on either side:
//
//   prepare   the rectangle of every box                       anchor_box()
//   best      the best overlap of every box with an anchor     visit()
//   assign    each anchor, from its own best and those         Assignment
//
// The overlap of a pair is computed twice, so that no matrix of pairs is ever stored. Anchors come
// in blocks of neighbors, and a block looks only at the boxes that reach into its bounds.
#pragma once

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/targets/target_boxes.h"

namespace torchvox {

inline constexpr int kMostAnchors = 64;  // of a cell
inline constexpr int32_t kBackground = -1, kIgnored = -2;

// The rule for one anchor of every cell. Overlaps are from 0 to 1.
struct AnchorRule {
  int32_t label = -1;  // only boxes of this label may be assigned; -1: all
  float matched = 0, unmatched = 0;  // overlap from which it is positive, below which background
  float min_pos = 0;  // mmdet: overlap from which a box gets its best anchors
};

struct AnchorTargetsArgs {
  TargetBoxes targets;
  const float* anchors = nullptr;  // [cells, per_cell, 7], contiguous
  int64_t cells = 0, per_cell = 0;
  AnchorRule rule[kMostAnchors];
  bool mmdet = false;  // else pcdet
  int32_t* assigned = nullptr;  // [batches, cells, per_cell]: box, kBackground or kIgnored
  int32_t* num_pos = nullptr;  // [batches]

  TORCHVOX_HD int64_t num_anchors() const { return cells * per_cell; }
};

// A box seen from above, turned to the nearest axis, in meters. A box without an area, or with a
// value that is not finite, is all zeros and overlaps nothing.
struct AxisBox {
  float x0, y0, x1, y1, area;
};

// The rectangle of a box of the batch.
struct TargetRect {
  AxisBox box;
  int32_t label;  // -1: no box
  int32_t ignored;
};

// The rectangle of a box [7]. The two conventions differ at a yaw of exactly 45 degrees.
TORCHVOX_HD AxisBox axis_box(const float* row, bool mmdet) {
  constexpr float kPi = 3.14159274f, kQuarter = 0.785398185f;
  const float yaw = row[6];
  const float folded = magnitude(yaw - std::floor(yaw / kPi + 0.5f) * kPi);
  const bool turned = mmdet ? folded > kQuarter : folded >= kQuarter;
  const float half_x = (turned ? row[4] : row[3]) * 0.5f,
              half_y = (turned ? row[3] : row[4]) * 0.5f;
  AxisBox box{row[0] - half_x, row[1] - half_y, row[0] + half_x, row[1] + half_y, 0};
  box.area = (box.x1 - box.x0) * (box.y1 - box.y0);
  if (row[3] > 0 && row[4] > 0 && is_finite(box.area) && is_finite(yaw)) return box;
  return {0, 0, 0, 0, 0};
}

TORCHVOX_HD bool reaches(const AxisBox& a, const AxisBox& b) {
  return a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1;
}

// Intersection over union, in the order in which it is rounded.
TORCHVOX_HD float axis_iou(const AxisBox& a, const AxisBox& b) {
  const float dx = at_most(a.x1, b.x1) - at_least(a.x0, b.x0);
  const float dy = at_most(a.y1, b.y1) - at_least(a.y0, b.y0);
  if (!(dx > 0 && dy > 0)) return 0;
  const float shared = dx * dy;
  return shared / at_least(a.area + b.area - shared, 1e-6f);
}

// Bounds of a set of boxes, which starts empty.
TORCHVOX_HD AxisBox no_bounds() {
  return {portable::infinity(), portable::infinity(), -portable::infinity(), -portable::infinity(),
          0};
}
TORCHVOX_HD void unite(AxisBox& bounds, const AxisBox& other) {
  bounds.x0 = at_most(bounds.x0, other.x0);
  bounds.y0 = at_most(bounds.y0, other.y0);
  bounds.x1 = at_least(bounds.x1, other.x1);
  bounds.y1 = at_least(bounds.y1, other.y1);
}
TORCHVOX_HD void extend(AxisBox& bounds, const AxisBox& box) {
  if (box.area > 0) unite(bounds, box);
}

TORCHVOX_HD TargetRect target_rect(const AnchorTargetsArgs& args, int64_t batch, int64_t g) {
  const float* const row = args.targets.row(batch, g);
  return {axis_box(row, args.mmdet), args.targets.label(batch, g),
          args.targets.is_ignored(batch, g)};
}

// The overlap of an anchor with a box that may be assigned to it, else 0.
TORCHVOX_HD float overlap_of(const AnchorRule& rule, const AxisBox& anchor,
                             const TargetRect& target) {
  if (target.label < 0 || (rule.label >= 0 && rule.label != target.label)) return 0;
  return axis_iou(anchor, target.box);
}

// The assignment of one anchor. consider() is called for the boxes by rising index.
struct Assignment {
  float best = 0;
  int32_t box = kBackground;  // the first of the best overlap
  int32_t forced = kBackground;  // the last box of which this is a best anchor
  bool ignored = false;  // whether `box` is

  // `most`: bits of the best overlap of the box with any anchor.
  TORCHVOX_HD void consider(const AnchorTargetsArgs& args, const AnchorRule& rule, float overlap,
                            const TargetRect& target, int32_t g, uint32_t most) {
    if (!(overlap > 0)) return;
    if (overlap > best) {
      best = overlap;
      box = g;
      ignored = target.ignored;
    }
    const bool is_most = !target.ignored && float_bits(overlap) == most;
    if (is_most && (!args.mmdet || overlap >= rule.min_pos)) forced = g;
  }

  // pcdet takes the anchor's own best box where any box forces it, mmdet the box that forces it.
  TORCHVOX_HD int32_t result(const AnchorTargetsArgs& args, const AnchorRule& rule) const {
    if (ignored) return kIgnored;
    if (forced >= 0) return args.mmdet ? forced : box;
    const bool positive = box >= 0 && best >= rule.matched, negative = best < rule.unmatched;
    if (args.mmdet) return positive ? box : negative ? kBackground : kIgnored;
    return negative ? kBackground : positive ? box : kIgnored;
  }
};

struct AnchorScratch {
  TargetRect* rect;  // [batches, rows]
  uint32_t* most;  // [batches, rows]: bits of the best overlap of a box with an anchor

  AnchorScratch(const AnchorTargetsArgs& args, Workspace& workspace)
      : rect(workspace.take<TargetRect>(args.targets.batches * args.targets.rows())),
        most(workspace.take<uint32_t>(args.targets.batches * args.targets.rows())) {}
};

TORCHVOX_KERNEL_WITH_WORKSPACE(AnchorTargetsArgs, carved_bytes<AnchorScratch>(args));

}  // namespace torchvox
