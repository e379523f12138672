// SPDX-License-Identifier: Apache-2.0
//
// points_in_boxes; box_query, which lists the points of each box; overlaps, NMS and placing of
// boxes.
#include "csrc/kernels/boxes/box_query.h"
#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/boxes/place_boxes.h"
#include "csrc/kernels/boxes/points_in_boxes.h"
#include "csrc/kernels/boxes/rotated_iou.h"
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

OverlapMetric parse_metric(const char* op, std::string_view metric) {
  return parse_choice<OverlapMetric>(op, "metric", metric,
                                     {{"iou", OverlapMetric::kIou},
                                      {"iof", OverlapMetric::kIof},
                                      {"overlap", OverlapMetric::kOverlap}});
}

void check_arguments(const char* op, const Tensor& a, const Tensor& b, std::string_view mode,
                     bool paired) {
  // Coordinates of 16 bits would be off by centimeters: they are refused, not widened.
  const bool batched = a.dim() == 3;
  Inputs in(op);
  in.add("a", a, Dtypes::kWideFloats, batched ? "[B, N, 7+]" : "[N, 7+]");
  in.add("b", b, Dtypes::kWideFloats,
         paired ? (batched ? "[B, N, 7+]" : "[N, 7+]") : (batched ? "[B, M, 7+]" : "[M, 7+]"));
  check_dtype(op, "b", b.scalar_type(), "a", a.scalar_type());
  check_few_rows(op, a);
  check_few_rows(op, b);
  parse_word(op, "mode", mode, "bev", "3d");
}

c10::SymDimVector shape_of_iou(const Tensor& a, const Tensor& b, bool paired) {
  c10::SymDimVector shape(a.sym_sizes());
  shape.pop_back();
  if (!paired) shape.push_back(b.sym_size(-2));
  return shape;
}

RotatedIouArgs arguments(const Tensor& a, const Tensor& b, std::string_view mode, bool paired,
                         OverlapMetric metric) {
  RotatedIouArgs args;
  args.a = box_array(a);
  args.b = box_array(b);
  args.dtype = dtype_of(a.scalar_type());
  args.batches = a.dim() == 3 ? a.size(0) : 1;
  args.is_paired = paired;
  args.is_volume = mode == "3d";
  args.metric = metric;
  return args;
}

Tensor rotated_iou(const Tensor& a_in, const Tensor& b_in, std::string_view mode, bool paired,
                   std::string_view metric_in) {
  const char* op = "rotated_iou";
  check_arguments(op, a_in, b_in, mode, paired);
  const OverlapMetric metric = parse_metric(op, metric_in);
  const Tensor out = empty_beside(shape_of_iou(a_in, b_in, paired), a_in.scalar_type(), a_in);
  if (a_in.is_meta()) return out;

  const Tensor a = readable(a_in), b = readable(b_in);
  RotatedIouArgs args = arguments(a, b, mode, paired, metric);
  args.iou = out.mutable_data_ptr();
  run(op, a, args);
  return out;
}

std::tuple<Tensor, Tensor> rotated_iou_backward(const Tensor& grad, const Tensor& a_in,
                                                const Tensor& b_in, std::string_view mode,
                                                bool paired, std::string_view metric_in, bool for_a,
                                                bool for_b) {
  const char* op = "_rotated_iou_backward";
  check_arguments(op, a_in, b_in, mode, paired);
  const OverlapMetric metric = parse_metric(op, metric_in);
  check_same(op, "grad", grad, "the output", a_in, shape_of_iou(a_in, b_in, paired),
             a_in.scalar_type());
  RotatedIouBackwardArgs args;
  const Tensor grad_a = output_gradient(args.grad_a, a_in, for_a);
  const Tensor grad_b = output_gradient(args.grad_b, b_in, for_b);
  if (grad.is_meta()) return {grad_a, grad_b};

  Memory memory;
  const Tensor a = readable(a_in), b = readable(b_in);
  args.forward = arguments(a, b, mode, paired, metric);
  args.grad = memory.of(grad);
  args.a_columns = a.size(-1);
  args.b_columns = b.size(-1);
  run(op, grad, args);
  return {grad_a, grad_b};
}

std::tuple<Tensor, Tensor> rotated_nms(const Tensor& boxes_in, const Tensor& scores,
                                       double threshold, c10::SymInt max_out,
                                       const OptionalTensor& group, const OptionalTensor& lengths,
                                       std::string_view mode) {
  const char* op = "rotated_nms";
  Inputs in(op);
  in.add("boxes", boxes_in, Dtypes::kFloat32, "[B, N, 7+]");
  in.add("scores", scores, Dtypes::kFloat32, "[B, N]");
  in.add("group", group, Dtypes::kIndices, "[B, N]");
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  check_few_rows(op, boxes_in);
  check_value(threshold >= 0, op, "threshold must be >= 0", threshold);
  check_count(op, "max_out", max_out);
  const bool circle = parse_word(op, "mode", mode, "rotated", "circle");
  RotatedNmsArgs args;
  const Tensor index = output(args.nms.kept, {in["B"], max_out}, boxes_in);
  const Tensor count = output(args.nms.kept_counts, {in["B"]}, boxes_in);
  if (boxes_in.is_meta()) return {index, count};

  Memory memory;
  const Tensor boxes = readable(boxes_in);
  args.nms.boxes = boxes.const_data_ptr<float>();
  args.nms.segments = boxes.size(0);
  args.nms.capacity = boxes.size(1);
  args.nms.box_stride = boxes.stride(1);
  args.nms.segment_stride = boxes.stride(0);
  args.nms.group = memory.indices(group);
  args.nms.mode = circle ? NmsMode::kCircle : NmsMode::kRotated;
  args.nms.thresholds[0] = static_cast<float>(threshold);
  args.nms.most = index.size(1);
  args.scores = memory.of<float>(scores);
  args.lengths = memory.indices(lengths);
  run(op, boxes, args);
  return {index, count};
}

Tensor place_boxes(const Tensor& boxes_in, const Tensor& candidates, const Tensor& group,
                   const OptionalTensor& lengths, std::string_view mode,
                   const OptionalTensor& replaces) {
  const char* op = "place_boxes";
  Inputs in(op);
  in.add("boxes", boxes_in, Dtypes::kFloat32, "[B, G, 7+]");
  in.add("candidates", candidates, Dtypes::kFloat32, "[B, K, T, 7+]");
  in.add("group", group, Dtypes::kIndices, "[B, K]");
  in.add("replaces", replaces, Dtypes::kIndices, "[B, K]");
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  check_few_rows(op, boxes_in);
  check_few_rows(op, candidates);
  check_below(in["G"] + in["K"], kIndexLimit, op, "boxes and candidates must be fewer than 2^31",
              candidates.sym_sizes());
  PlaceBoxesArgs args;
  args.mode =
      parse_word(op, "mode", mode, "both", "greedy") ? PlaceMode::kGreedy : PlaceMode::kBoth;
  const Tensor choice = output(args.choice, {in["B"], in["K"]}, boxes_in);
  if (boxes_in.is_meta()) return choice;

  Memory memory;
  const Tensor boxes = readable(boxes_in);
  args.boxes = box_array(boxes);
  args.lengths = memory.indices(lengths);
  args.candidates = memory.of<float>(candidates);
  args.batches = candidates.size(0);
  args.count = candidates.size(1);
  args.tries = candidates.size(2);
  args.columns = candidates.size(3);
  args.group = memory.indices(group);
  args.replaces = memory.indices(replaces);
  run(op, boxes, args);
  return choice;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("points_in_boxes", points_in_boxes, not_differentiable());
  ops.autocast("points_in_boxes", {{{"points", "boxes"}}, {"points", "boxes"}});
  ops.add("box_query", box_query, not_differentiable());
  ops.autocast("box_query", {{{"points", "boxes"}}, {"points", "boxes"}});
  ops.add("rotated_iou", rotated_iou);
  ops.autocast("rotated_iou", {{{"a", "b"}}, {"a", "b"}});
  ops.differentiable("rotated_iou", {"_rotated_iou_backward"});
  ops.add("_rotated_iou_backward", rotated_iou_backward, no_second_derivative());
  ops.add("rotated_nms", rotated_nms, not_differentiable());
  ops.autocast("rotated_nms", {{}, {"boxes", "scores"}});
  ops.add("place_boxes", place_boxes, not_differentiable());
  ops.autocast("place_boxes", {{}, {"boxes", "candidates"}});
}

}  // namespace
}  // namespace torchvox
