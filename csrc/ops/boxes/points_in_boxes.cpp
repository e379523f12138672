// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/points_in_boxes.h"

#include <torch/library.h>

#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

PointsInBoxesMode parse_mode(const char* op, std::string_view mode) {
  if (mode == "index") return PointsInBoxesMode::kIndex;
  if (mode == "mask") return PointsInBoxesMode::kMask;
  check_value(mode == "count", op, "mode must be 'index', 'mask' or 'count'", "'", mode, "'");
  return PointsInBoxesMode::kCount;
}

Tensor empty_output(PointsInBoxesMode mode, const Tensor& points, const Tensor& boxes) {
  const c10::SymInt batches = points.sym_size(0);
  switch (mode) {
    case PointsInBoxesMode::kMask:
      return empty_beside({batches, boxes.sym_size(1), points.sym_size(1)}, at::kBool, points);
    case PointsInBoxesMode::kCount:
      return empty_beside({batches, boxes.sym_size(1)}, at::kInt, points);
    case PointsInBoxesMode::kIndex: break;
  }
  return empty_beside({batches, points.sym_size(1)}, at::kInt, points);
}

Tensor points_in_boxes(const Tensor& points_in, const Tensor& boxes_in, std::string_view mode,
                       double margin, const OptionalTensor& lengths_in,
                       const OptionalTensor& box_lengths_in) {
  const char* op = "points_in_boxes";
  check_wide_floats(op, "points", points_in);
  check_columns(op, points_in, 3, 3, "points must be [B, N, C] with C >= 3");
  check_type(boxes_in.scalar_type() == points_in.scalar_type(), op,
             "boxes must have the dtype of points", boxes_in.scalar_type());
  check_device(op, "boxes", boxes_in, "points", points_in);
  const Rule boxes_rule = "boxes must be [B, G, 7] with the B of points, with 7 columns or more";
  check_columns(op, boxes_in, 7, 3, boxes_rule);
  check_size(boxes_in.sym_size(0).sym_eq(points_in.sym_size(0)), op, boxes_rule,
             boxes_in.sym_sizes());
  check_vector(op, "lengths", lengths_in, "points", points_in, points_in.sym_size(0), "[B]");
  check_vector(op, "box_lengths", box_lengths_in, "points", points_in, points_in.sym_size(0),
               "[B]");
  check_value(margin >= 0 && std::isfinite(margin), op, "margin must be >= 0 and finite", margin);
  PointsInBoxesArgs args;
  args.mode = parse_mode(op, mode);
  const Tensor out = empty_output(args.mode, points_in, boxes_in);
  if (points_in.is_meta()) return out;

  const Tensor points = readable(points_in), boxes = readable(boxes_in);
  const OptionalTensor lengths = contiguous(lengths_in), box_lengths = contiguous(box_lengths_in);
  args.points = box_array(points);
  args.boxes = box_array(boxes);
  args.dtype = dtype_of(points.scalar_type());
  args.batches = points.size(0);
  args.lengths = index_array(lengths);
  args.box_lengths = index_array(box_lengths);
  args.margin = margin;
  args.out = out.mutable_data_ptr();
  run(op, points, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add(TORCHVOX_OP(points_in_boxes));
  ops.autocast("points_in_boxes", {{{"points", "boxes"}}, {"points", "boxes"}});
  ops.autograd("points_in_boxes", not_differentiable());
}

}  // namespace
}  // namespace torchvox
