// SPDX-License-Identifier: Apache-2.0
//
// The arguments that points_in_boxes and box_query share.
#pragma once

#include "csrc/kernels/boxes/points_in_boxes.h"
#include "csrc/ops/boxes/box_checks.h"

namespace torchvox {

inline void check_inside(const char* op, const Tensor& points, const Tensor& boxes, double margin,
                         const OptionalTensor& lengths, const OptionalTensor& box_lengths) {
  Inputs in(op);
  in.add("points", points, Dtypes::kWideFloats, "[B, N, C >= 3]");
  in.add("boxes", boxes, Dtypes::kWideFloats, "[B, G, 7+]");
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  in.add("box_lengths", box_lengths, Dtypes::kIndices, "[B]");
  check_dtype(op, "boxes", boxes.scalar_type(), "points", points.scalar_type());
  check_few_rows(op, points);
  check_few_rows(op, boxes);
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
