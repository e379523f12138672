// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/boxes/rotated_overlap.h"

namespace torchvox {

inline constexpr int kNmsTile = 64;  // boxes that one word stands for
inline constexpr int kNmsChunkTiles = 64;  // tiles whose pairs are held at a time
inline constexpr int64_t kNmsChunk = kNmsTile * kNmsChunkTiles;

TORCHVOX_HD bool is_finite_box(const float* row) {
  bool finite = true;
  for (int c = 0; c < kBoxColumns; ++c) finite = finite && is_finite(row[c]);
  return finite;
}

// What the rule needs of a box. Circles need the centre alone, whatever the sizes.
TORCHVOX_HD BevBox<float> nms_box(NmsMode mode, const float* row) {
  if (mode == NmsMode::kRotated) return bev_box(row);
  BevBox<float> box{};
  box.x = row[0];
  box.y = row[1];
  return box;
}

// Cheap, and true wherever `suppresses` is; all that circles need.
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

}  // namespace torchvox
