// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/points_in_boxes.h"

#include "csrc/ops/boxes/inside.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

Tensor empty_output(PointsInBoxesMode mode, const Tensor& points, const Tensor& boxes) {
  const c10::SymInt batches = points.sym_size(0);
  switch (mode) {
    case PointsInBoxesMode::kMask:
      return empty_beside({batches, boxes.sym_size(1), points.sym_size(1)}, at::kBool, points);
    case PointsInBoxesMode::kCount:
      return empty_beside({batches, boxes.sym_size(1)}, at::kInt, points);
    default: break;
  }
  return empty_beside({batches, points.sym_size(1)}, at::kInt, points);
}

Tensor points_in_boxes(const Tensor& points_in, const Tensor& boxes_in, std::string_view mode,
                       double margin, const OptionalTensor& lengths_in,
                       const OptionalTensor& box_lengths_in) {
  const char* op = "points_in_boxes";
  check_inside(op, points_in, boxes_in, margin, lengths_in, box_lengths_in);
  const PointsInBoxesMode parsed =
      parse_choice<PointsInBoxesMode>(op, "mode", mode,
                                      {{"index", PointsInBoxesMode::kIndex},
                                       {"mask", PointsInBoxesMode::kMask},
                                       {"count", PointsInBoxesMode::kCount}});
  const Tensor out = empty_output(parsed, points_in, boxes_in);
  if (points_in.is_meta()) return out;

  InsideArgs inside(points_in, boxes_in, margin, lengths_in, box_lengths_in);
  inside.args.mode = parsed;
  inside.args.out = out.mutable_data_ptr();
  run(op, inside.points, inside.args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("points_in_boxes", points_in_boxes);
  ops.autocast("points_in_boxes", {{{"points", "boxes"}}, {"points", "boxes"}});
  ops.autograd("points_in_boxes", not_differentiable());
}

}  // namespace
}  // namespace torchvox
