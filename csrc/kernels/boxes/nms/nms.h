// SPDX-License-Identifier: Apache-2.0
//
// Entry of greedy NMS over boxes in order, and its rule for one pair. On the GPU nms.cu prepares
// the boxes and finds the suppressing pairs as bits, decide.cu makes the greedy choice; scratch.cuh
// is the memory between them. rotated_nms.cu puts an argsort of the scores before them.
#pragma once

#include "csrc/kernels/boxes/rotated_overlap.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

enum class NmsMode {
  kRotated,  // suppresses where the intersection over union, seen from above, exceeds the threshold
  kCircle  // suppresses where the squared distance of the centers is at most the threshold
};

inline constexpr int kMostNmsThresholds = 64;

// Greedy suppression over boxes in order: a box is kept if no box kept before suppresses it, until
// `most` are kept. Boxes with a value that is not finite are skipped; boxes without area overlap
// nothing. Work is at most capacity^2 pairs per segment, memory at most 2 MiB per segment and about
// 40 bytes per box.
struct NmsArgs {
  const float* boxes = nullptr;  // [segments, capacity, 7 or more]: x, y, z, l, w, h, yaw
  int64_t segments = 0;
  int64_t capacity = 0;  // below 2^31
  int64_t box_stride = 7, segment_stride = 0;  // in elements
  const int32_t* counts = nullptr;  // [segments]: boxes that exist; null: capacity
  const int32_t* order = nullptr;  // [segments, capacity]: the box at a position; null: box i at i
  IndexArray group;  // [segments, capacity]: boxes of different groups do not suppress each other

  NmsMode mode = NmsMode::kRotated;
  float thresholds[kMostNmsThresholds] = {};  // segment s uses number s % num_thresholds
  int num_thresholds = 1;
  int64_t most = 0;  // boxes to keep per segment, at most

  int32_t* kept = nullptr;  // [segments, most]: the kept boxes in order, then -1
  int32_t* kept_counts = nullptr;  // [segments]

  TORCHVOX_HD int64_t count(int64_t segment) const {
    return clamp_index(counts ? counts[segment] : capacity, 0, capacity);
  }
  TORCHVOX_HD int64_t box_at(int64_t segment, int64_t position) const {
    return order ? order[segment * capacity + position] : position;
  }
  TORCHVOX_HD const float* row(int64_t segment, int64_t box) const {
    return boxes + segment * segment_stride + box * box_stride;
  }
  TORCHVOX_HD int64_t group_of(int64_t segment, int64_t box) const {
    return group.given() ? group[segment * capacity + box] : 0;
  }
  TORCHVOX_HD float threshold(int64_t segment) const {
    return thresholds[segment % num_thresholds];
  }
};

TORCHVOX_KERNEL(NmsArgs);
inline constexpr int kNmsTile = 64;  // boxes that one word stands for
inline constexpr int kNmsChunkTiles = 64;  // tiles whose pairs are in memory at a time
inline constexpr int64_t kNmsChunk = kNmsTile * kNmsChunkTiles;

TORCHVOX_HD bool is_finite_box(const float* row) {
  bool finite = true;
  for (int c = 0; c < kBoxColumns; ++c) finite = finite && is_finite(row[c]);
  return finite;
}

// A box ready for the rule. Circles need only the center, whatever the sizes.
TORCHVOX_HD BevBox<float> nms_box(NmsMode mode, const float* row) {
  if (mode == NmsMode::kRotated) return bev_box(row);
  BevBox<float> box{};
  box.x = row[0];
  box.y = row[1];
  return box;
}

// A cheap test that is true wherever `suppresses` is; for circles the whole test.
TORCHVOX_HD bool may_suppress(NmsMode mode, const BevBox<float>& a, const BevBox<float>& b,
                              float threshold) {
  if (mode == NmsMode::kRotated) return circles_meet(a, b);
  const float dx = b.x - a.x, dy = b.y - a.y;
  return dx * dx + dy * dy <= threshold;
}
TORCHVOX_HD bool suppresses(NmsMode mode, const BevBox<float>& a, const BevBox<float>& b,
                            float threshold) {
  return mode == NmsMode::kRotated ? rotated_iou_bev(a, b) > threshold
                                   : may_suppress(mode, a, b, threshold);
}

inline const PlanOverride nms_order_plan{"nms_order"};  // CUDA: 0 by counting, 1 by radix sort

// NMS of boxes in any order, visited by descending score, equal scores by ascending index. Boxes
// whose score is not finite are omitted.
struct RotatedNmsArgs {
  NmsArgs nms;  // counts and order are this call's own
  const float* scores = nullptr;  // [segments, capacity]
  IndexArray lengths;  // [segments]: boxes that exist

  TORCHVOX_HD int64_t length(int64_t segment) const {
    return clamp_index(lengths.given() ? lengths[segment] : nms.capacity, 0, nms.capacity);
  }
};

TORCHVOX_KERNEL(RotatedNmsArgs);

inline constexpr uint32_t kLeftOut = 0xffffffffu;  // the key of a box without a finite score

// Sort key of a score: ascending keys are descending scores; -0 and +0 are equal.
TORCHVOX_HD uint32_t score_key(float score) {
  return is_finite(score) ? ~ordered_bits(score + 0.0f) : kLeftOut;
}
TORCHVOX_HD uint32_t score_key(const RotatedNmsArgs& args, int64_t segment, int64_t box) {
  if (box >= args.length(segment)) return kLeftOut;
  return score_key(args.scores[segment * args.nms.capacity + box]);
}

// Boxes in the order of NMS, of which each segment uses the first counts[s] positions.
struct ScoreArgsort {
  int32_t* order;  // [segments, capacity]
  int32_t* counts;  // [segments]

  ScoreArgsort(const RotatedNmsArgs& args, Workspace& workspace)
      : order(workspace.take<int32_t>(args.nms.segments * args.nms.capacity)),
        counts(workspace.take<int32_t>(args.nms.segments)) {}

  NmsArgs applied_to(NmsArgs nms) const {
    if (nms.capacity > 0) {
      nms.order = order;
      nms.counts = counts;
    }
    return nms;
  }
};

}  // namespace torchvox
