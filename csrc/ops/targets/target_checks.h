// SPDX-License-Identifier: Apache-2.0
//
// The boxes that a detector is trained on, checked and as kernels see them.
#pragma once

#include "csrc/kernels/targets/target_boxes.h"
#include "csrc/ops/boxes/box_checks.h"

namespace torchvox {

inline void add_targets(Inputs& in, const Tensor& boxes, const Tensor& labels,
                        const OptionalTensor& weight, const OptionalTensor& num_boxes) {
  in.add("boxes", boxes, Dtypes::kFloat32, "[B, G, 7+]");
  in.add("labels", labels, Dtypes::kIndices, "[B, G]");
  in.add("weight", weight, Dtypes::kFloat32, "[B, G]");
  in.add("num_boxes", num_boxes, Dtypes::kIndices, "[B]");
  check_few_rows(in.op(), boxes);
}

inline TargetBoxes target_boxes(Memory& memory, const Tensor& boxes, const Tensor& labels,
                                const OptionalTensor& weight, const OptionalTensor& num_boxes) {
  TargetBoxes view;
  view.boxes = box_array(memory.rows(boxes));
  view.labels = memory.indices(labels);
  view.weight = memory.of<float>(weight);
  view.num_boxes = memory.indices(num_boxes);
  view.batches = boxes.size(0);
  return view;
}

}  // namespace torchvox
