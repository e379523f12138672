// SPDX-License-Identifier: Apache-2.0
//
// The boxes that a detector is taught, checked and as kernels see them.
#pragma once

#include "csrc/kernels/targets/target_boxes.h"
#include "csrc/ops/boxes/box_checks.h"

namespace torchvox {

// The first `axes` sizes of `tensor` are those of `other`.
inline void check_leading(const char* op, const Rule& rule, const Tensor& tensor,
                          const Tensor& other, int axes) {
  for (int axis = 0; axis < axes; ++axis) {
    check_size(tensor.sym_size(axis).sym_eq(other.sym_size(axis)), op, rule, tensor.sym_sizes());
  }
}

inline void check_boxes_and_labels(const char* op, const Tensor& boxes, const Tensor& labels) {
  check_type(boxes.scalar_type() == at::kFloat, op, "boxes must be float32", boxes.scalar_type());
  check_columns(op, boxes, 7, 3, "boxes must be [B, G, 7], with 7 columns or more");
  const Rule labels_rule = "labels must be [B, G], as boxes";
  check_integers(op, "labels", labels);
  check_device(op, "labels", labels, "boxes", boxes);
  check_value(labels.dim() == 2, op, labels_rule, labels.sym_sizes());
  check_leading(op, labels_rule, labels, boxes, 2);
}

// The tensors that a kernel reads, which keep their memory.
struct Targets {
  Tensor boxes;
  OptionalTensor labels, weight, num_boxes;

  static void check(const char* op, const Tensor& boxes, const Tensor& labels,
                    const OptionalTensor& weight, const OptionalTensor& num_boxes) {
    check_boxes_and_labels(op, boxes, labels);
    if (weight) {
      const Rule rule = "weight must be [B, G], as boxes";
      check_type(weight->scalar_type() == at::kFloat, op, "weight must be float32",
                 weight->scalar_type());
      check_device(op, "weight", *weight, "boxes", boxes);
      check_value(weight->dim() == 2, op, rule, weight->sym_sizes());
      check_leading(op, rule, *weight, boxes, 2);
    }
    check_vector(op, "num_boxes", num_boxes, "boxes", boxes, boxes.sym_size(0), "[B]");
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
