// SPDX-License-Identifier: Apache-2.0
//
// The boxes that a detector is trained on, checked and as kernels see them.
#pragma once

#include "csrc/kernels/targets/target_boxes.h"
#include "csrc/ops/boxes/box_checks.h"

namespace torchvox {

// The tensors that a kernel reads, which keep their memory.
struct Targets {
  Tensor boxes;
  OptionalTensor labels, weight, num_boxes;

  // Declares them to `in`.
  static void add(Inputs& in, const Tensor& boxes, const Tensor& labels,
                  const OptionalTensor& weight, const OptionalTensor& num_boxes) {
    in.add("boxes", boxes, Dtypes::kFloat32, "[B, G, 7+]");
    in.add("labels", labels, Dtypes::kIndices, "[B, G]");
    in.add("weight", weight, Dtypes::kFloat32, "[B, G]");
    in.add("num_boxes", num_boxes, Dtypes::kIndices, "[B]");
  }

  Targets(const Tensor& boxes_in, const Tensor& labels_in, const OptionalTensor& weight_in,
          const OptionalTensor& num_boxes_in)
      : boxes(readable(boxes_in)),
        labels(labels_in.contiguous()),
        weight(contiguous(weight_in)),
        num_boxes(contiguous(num_boxes_in)) {}

  TargetBoxes view() const {
    TargetBoxes view;
    view.boxes = box_array(boxes);
    view.labels = index_array(labels);
    view.weight = weight ? weight->const_data_ptr<float>() : nullptr;
    view.num_boxes = index_array(num_boxes);
    view.batches = boxes.size(0);
    return view;
  }
};

}  // namespace torchvox
