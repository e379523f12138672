// SPDX-License-Identifier: Apache-2.0
//
// The true boxes of a batch, from which targets of a detector are made.
#pragma once

#include "csrc/kernels/boxes/rotated_iou.h"

namespace torchvox {

// Rows [0, count(batch)) with a label >= 0 are boxes.
struct TargetBoxes {
  BoxArray boxes;  // float [batches, rows, 7 or more]
  IndexArray labels;  // [batches, rows]; below 0: no box
  const float* weight = nullptr;  // [batches, rows]; null: 1 each. Not above 0: the box is ignored
  IndexArray num_boxes;  // [batches]; not given: all rows
  int64_t batches = 0;

  TORCHVOX_HD int64_t rows() const { return boxes.rows; }
  TORCHVOX_HD int64_t count(int64_t batch) const {
    return num_boxes.given() ? clamp_index(num_boxes[batch], 0, rows()) : rows();
  }
  TORCHVOX_HD const float* row(int64_t batch, int64_t g) const {
    return boxes.row<float>(batch, g);
  }
  // -1 where there is no box.
  TORCHVOX_HD int32_t label(int64_t batch, int64_t g) const {
    if (g >= count(batch)) return -1;
    const int64_t label = labels[batch * rows() + g];
    return label >= 0 && label <= INT32_MAX ? static_cast<int32_t>(label) : -1;
  }
  TORCHVOX_HD bool is_ignored(int64_t batch, int64_t g) const {
    return weight != nullptr && !(weight[batch * rows() + g] > 0);
  }
};

}  // namespace torchvox
