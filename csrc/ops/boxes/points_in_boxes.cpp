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

c10::SymDimVector output_shape(PointsInBoxesMode mode, const Tensor& points, const Tensor& boxes) {
  switch (mode) {
    case PointsInBoxesMode::kMask:
      return {points.sym_size(0), boxes.sym_size(1), points.sym_size(1)};
    case PointsInBoxesMode::kCount: return {points.sym_size(0), boxes.sym_size(1)};
    default: return {points.sym_size(0), points.sym_size(1)};
  }
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
  const Tensor out =
      empty_beside(output_shape(parsed, points_in, boxes_in),
                   parsed == PointsInBoxesMode::kMask ? at::kBool : at::kInt, points_in);
  if (points_in.is_meta()) return out;

  InsideArgs inside(points_in, boxes_in, margin, lengths_in, box_lengths_in);
  inside.args.mode = parsed;
  inside.args.out = out.mutable_data_ptr();
  run(op, inside.points, inside.args);
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

  const InsideArgs inside(points, boxes, margin, lengths, box_lengths);
  args.inside = inside.args;
  args.slots = index.size(-1);
  run(op, inside.points, args);
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
