// SPDX-License-Identifier: Apache-2.0
//
// Entry of rotated_nms: an argsort of the scores, then the NMS of nms.h.
#pragma once

#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

// Plans that tests force.
inline const PlanOverride nms_order_plan{
    "nms_order"};  // CUDA, argsort of scores: 0 by counting, 1 by radix sort

// NMS of boxes in any order: by falling score, equal scores by rising index. Boxes whose score is
// not finite are left out.
struct RotatedNmsArgs {
  NmsArgs nms;  // counts and order are this call's own
  const float* scores = nullptr;  // [segments, capacity]
  IndexArray lengths;  // [segments]: boxes that there are

  TORCHVOX_HD int64_t length(int64_t segment) const {
    return clamp_index(lengths.given() ? lengths[segment] : nms.capacity, 0, nms.capacity);
  }
};

TORCHVOX_KERNEL(RotatedNmsArgs);

inline constexpr uint32_t kLeftOut = 0xffffffffu;

// Rises as the score falls; -0 and +0 are one score.
TORCHVOX_HD uint32_t score_key(float score) {
  return is_finite(score) ? ~ordered_bits(score + 0.0f) : kLeftOut;
}
TORCHVOX_HD uint32_t score_key(const RotatedNmsArgs& args, int64_t segment, int64_t box) {
  if (box >= args.length(segment)) return kLeftOut;
  return score_key(args.scores[segment * args.nms.capacity + box]);
}

// Boxes in the order of NMS; the first counts[s] of a segment's positions are used.
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
