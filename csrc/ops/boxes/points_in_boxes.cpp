// SPDX-License-Identifier: Apache-2.0
//
// points_in_boxes and box_query, which lists the points of each box.
#include "csrc/kernels/boxes/points_in_boxes.h"

#include "csrc/kernels/boxes/box_query.h"
#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

void check_inside(const char* op, const Tensor& points, const Tensor& boxes, double margin,
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

PointsInBoxesArgs inside_args(Memory& memory, const Tensor& points, const Tensor& boxes,
                              double margin, const OptionalTensor& lengths,
                              const OptionalTensor& box_lengths) {
  PointsInBoxesArgs args;
  args.points = box_array(memory.rows(points));
  args.boxes = box_array(memory.rows(boxes));
  args.dtype = dtype_of(points.scalar_type());
  args.batches = points.size(0);
  args.lengths = memory.indices(lengths);
  args.box_lengths = memory.indices(box_lengths);
  args.margin = margin;
  return args;
}

c10::SymDimVector output_shape(PointsInBoxesMode mode, const Tensor& points, const Tensor& boxes) {
  switch (mode) {
    case PointsInBoxesMode::kMask:
      return {points.sym_size(0), boxes.sym_size(1), points.sym_size(1)};
    case PointsInBoxesMode::kCount: return {points.sym_size(0), boxes.sym_size(1)};
    default: return {points.sym_size(0), points.sym_size(1)};
  }
}

Tensor points_in_boxes(const Tensor& points, const Tensor& boxes, std::string_view mode,
                       double margin, const OptionalTensor& lengths,
                       const OptionalTensor& box_lengths) {
  const char* op = "points_in_boxes";
  check_inside(op, points, boxes, margin, lengths, box_lengths);
  const PointsInBoxesMode parsed =
      parse_choice<PointsInBoxesMode>(op, "mode", mode,
                                      {{"index", PointsInBoxesMode::kIndex},
                                       {"mask", PointsInBoxesMode::kMask},
                                       {"count", PointsInBoxesMode::kCount}});
  const Tensor out =
      empty_beside(output_shape(parsed, points, boxes),
                   parsed == PointsInBoxesMode::kMask ? at::kBool : at::kInt, points);
  if (points.is_meta()) return out;
  Memory memory;
  PointsInBoxesArgs args = inside_args(memory, points, boxes, margin, lengths, box_lengths);
  args.mode = parsed;
  args.out = out.mutable_data_ptr();
  run(op, points, args);
  return out;
}

std::tuple<Tensor, Tensor> box_query(const Tensor& points, const Tensor& boxes, c10::SymInt k,
                                     std::optional<at::IntArrayRef> grid, double margin,
                                     const OptionalTensor& lengths,
                                     const OptionalTensor& box_lengths) {
  const char* op = "box_query";
  check_inside(op, points, boxes, margin, lengths, box_lengths);
  check_count(op, "k", k);
  BoxQueryArgs args;
  c10::SymDimVector shape{points.sym_size(0), boxes.sym_size(1)};
  if (grid) {
    const Rule rule = "grid must be (nx, ny, nz), each 1 or more, with fewer than 2^31 cells";
    check_value(grid->size() == 3, op, rule, *grid);
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t size = (*grid)[axis];
      check_value(size >= 1 && size < kIndexLimit && args.cells() * size < kIndexLimit, op, rule,
                  *grid);
      args.grid[axis] = size;
    }
    shape.push_back(args.cells());
  }
  const Tensor count = output(args.count, shape, points);
  shape.push_back(std::move(k));
  const Tensor index = output(args.index, shape, points);
  if (points.is_meta()) return {index, count};
  Memory memory;
  args.inside = inside_args(memory, points, boxes, margin, lengths, box_lengths);
  args.slots = index.size(-1);
  run(op, points, args);
  return {index, count};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("points_in_boxes", points_in_boxes, not_differentiable());
  ops.autocast("points_in_boxes", {{{"points", "boxes"}}, {"points", "boxes"}});
  ops.add("box_query", box_query, not_differentiable());
  ops.autocast("box_query", {{{"points", "boxes"}}, {"points", "boxes"}});
}

}  // namespace
}  // namespace torchvox
