// SPDX-License-Identifier: Apache-2.0
//
// The arguments that points_in_boxes and box_query share.
#pragma once

#include "csrc/kernels/boxes/points_in_boxes.h"
#include "csrc/ops/boxes/box_checks.h"

namespace torchvox {

inline void check_inside(const char* op, const Tensor& points, const Tensor& boxes, double margin,
                         const OptionalTensor& lengths, const OptionalTensor& box_lengths) {
  check_wide_floats(op, "points", points);
  check_columns(op, points, 3, 3, "points must be [B, N, C] with C >= 3");
  check_dtype(op, "boxes", boxes.scalar_type(), "points", points.scalar_type());
  check_device(op, "boxes", boxes, "points", points);
  const Rule boxes_rule = "boxes must be [B, G, 7] with the B of points, with 7 columns or more";
  check_columns(op, boxes, 7, 3, boxes_rule);
  check_size(boxes.sym_size(0).sym_eq(points.sym_size(0)), op, boxes_rule, boxes.sym_sizes());
  check_vector(op, "lengths", lengths, "points", points, points.sym_size(0), "[B]");
  check_vector(op, "box_lengths", box_lengths, "points", points, points.sym_size(0), "[B]");
  check_value(margin >= 0 && std::isfinite(margin), op, "margin must be >= 0 and finite", margin);
}

// What a kernel reads; holds the memory of `args`.
struct InsideArgs {
  Tensor points, boxes;
  OptionalTensor lengths, box_lengths;
  PointsInBoxesArgs args;

  InsideArgs(const Tensor& points_in, const Tensor& boxes_in, double margin,
             const OptionalTensor& lengths_in, const OptionalTensor& box_lengths_in)
      : points(readable(points_in)),
        boxes(readable(boxes_in)),
        lengths(contiguous(lengths_in)),
        box_lengths(contiguous(box_lengths_in)) {
    args.points = box_array(points);
    args.boxes = box_array(boxes);
    args.dtype = dtype_of(points.scalar_type());
    args.batches = points.size(0);
    args.lengths = index_array(lengths);
    args.box_lengths = index_array(box_lengths);
    args.margin = margin;
  }
};

}  // namespace torchvox
