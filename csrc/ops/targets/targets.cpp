// SPDX-License-Identifier: Apache-2.0
//
// The targets of detection heads, and the loss of anchors.
#include <ATen/ops/empty_like.h>

#include "csrc/kernels/targets/anchor_loss.h"
#include "csrc/kernels/targets/anchor_targets.h"
#include "csrc/kernels/targets/center_targets.h"
#include "csrc/kernels/targets/target_boxes.h"
#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

void add_targets(Inputs& in, const Tensor& boxes, const Tensor& labels,
                 const OptionalTensor& weight, const OptionalTensor& num_boxes) {
  in.add("boxes", boxes, Dtypes::kFloat32, "[B, G, 7+]");
  in.add("labels", labels, Dtypes::kIndices, "[B, G]");
  in.add("weight", weight, Dtypes::kFloat32, "[B, G]");
  in.add("num_boxes", num_boxes, Dtypes::kIndices, "[B]");
  check_few_rows(in.op(), boxes);
}

TargetBoxes target_boxes(Memory& memory, const Tensor& boxes, const Tensor& labels,
                         const OptionalTensor& weight, const OptionalTensor& num_boxes) {
  TargetBoxes view;
  view.boxes = box_array(memory.rows(boxes));
  view.labels = memory.indices(labels);
  view.weight = memory.of<float>(weight);
  view.num_boxes = memory.indices(num_boxes);
  view.batches = boxes.size(0);
  return view;
}

constexpr const char* kAnchorTargets = "anchor_targets";

void check_per_anchor(const char* name, size_t length, int64_t per_cell) {
  check_value(length == static_cast<size_t>(per_cell), kAnchorTargets,
              {name, " must be one number per anchor of a cell"}, length);
}

// A threshold of overlaps, above 0 or, where that is allowed, 0.
float overlap_threshold(const char* name, double value, bool may_be_0) {
  check_value(std::isfinite(value) && (may_be_0 ? value >= 0 : value > 0), kAnchorTargets,
              {name, may_be_0 ? " must be finite and >= 0" : " must be finite and > 0"}, value);
  return static_cast<float>(value);
}

std::tuple<Tensor, Tensor> anchor_targets(const Tensor& boxes, const Tensor& labels,
                                          const OptionalTensor& weight,
                                          const OptionalTensor& num_boxes, const Tensor& anchors,
                                          at::IntArrayRef class_of_anchor,
                                          at::ArrayRef<double> matched,
                                          at::ArrayRef<double> unmatched, std::string_view mode,
                                          std::optional<at::ArrayRef<double>> min_pos) {
  const char* op = kAnchorTargets;
  Inputs in(op);
  add_targets(in, boxes, labels, weight, num_boxes);
  in.add("anchors", anchors, Dtypes::kFloat32, "[H, W, A, 7]");
  const int64_t per_cell = anchors.sym_size(2).guard_int(__FILE__, __LINE__);
  check_value(per_cell <= kMostAnchors, op, "anchors must be [H, W, A, 7] with A <= 64",
              anchors.sym_sizes());
  check_below(in["H"] * in["W"] * per_cell, kIndexLimit, op, "anchors must be fewer than 2^31",
              anchors.sym_sizes());
  check_per_anchor("class_of_anchor", class_of_anchor.size(), per_cell);
  check_per_anchor("matched", matched.size(), per_cell);
  check_per_anchor("unmatched", unmatched.size(), per_cell);
  if (min_pos) check_per_anchor("min_pos", min_pos->size(), per_cell);
  AnchorTargetsArgs args;
  args.mmdet = parse_word(op, "mode", mode, "pcdet", "mmdet");
  for (int64_t a = 0; a < per_cell; ++a) {
    check_value(class_of_anchor[a] >= -1 && class_of_anchor[a] < kIndexLimit, op,
                "class_of_anchor must be in [-1, 2^31)", class_of_anchor[a]);
    args.rule[a].label = static_cast<int32_t>(class_of_anchor[a]);
    args.rule[a].matched = overlap_threshold("matched", matched[a], false);
    args.rule[a].unmatched = overlap_threshold("unmatched", unmatched[a], false);
    args.rule[a].min_pos = overlap_threshold("min_pos", (min_pos ? *min_pos : unmatched)[a], true);
  }
  const Tensor assigned = output(args.assigned, {in["B"], in["H"], in["W"], per_cell}, boxes);
  const Tensor num_pos = output(args.num_pos, {in["B"]}, boxes);
  if (boxes.is_meta()) return {assigned, num_pos};
  Memory memory;
  args.targets = target_boxes(memory, boxes, labels, weight, num_boxes);
  args.anchors = memory.of<float>(anchors);
  args.cells = anchors.size(0) * anchors.size(1);
  args.per_cell = per_cell;
  run(op, boxes, args);
  return {assigned, num_pos};
}

constexpr const char* kCenterTargets = "center_targets";

void set_map(c10::ArrayRef<double> range, c10::ArrayRef<double> pillar_size, int64_t cells,
             at::IntArrayRef size, CenterTargetsArgs& args) {
  args.pillars_per_cell = parse_map(kCenterTargets, range, "pillar_size", pillar_size, "cells",
                                    cells, args.low, args.pillar);
  check_value(size.size() == 2 && size[0] >= 1 && size[1] >= 1 && size[0] < kIndexLimit &&
                  size[1] < kIndexLimit && size[0] * size[1] < kIndexLimit,
              kCenterTargets, "size must be (H, W), fewer than 2^31 cells and one at least", size);
  args.height = size[0];
  args.width = size[1];
}

void set_tasks(at::IntArrayRef task_of_class, CenterTargetsArgs& args) {
  check_value(!task_of_class.empty() && task_of_class.size() <= size_t{kMostTargetClasses},
              kCenterTargets, "task_of_class must be 1 to 64 numbers", task_of_class.size());
  for (size_t c = 0; c < task_of_class.size(); ++c) {
    check_value(task_of_class[c] >= 0 && task_of_class[c] < kMostTargetClasses, kCenterTargets,
                "task_of_class must be in [0, 64)", task_of_class[c]);
    args.task[c] = static_cast<int32_t>(task_of_class[c]);
    args.tasks = std::max(args.tasks, task_of_class[c] + 1);
  }
  args.classes = static_cast<int64_t>(task_of_class.size());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> center_targets(
    const Tensor& boxes, const Tensor& labels, const OptionalTensor& weight,
    const OptionalTensor& num_boxes, at::ArrayRef<double> point_cloud_range,
    at::ArrayRef<double> pillar_size, int64_t cells, at::IntArrayRef size,
    at::IntArrayRef task_of_class, c10::SymInt max_objects, double overlap, int64_t min_radius) {
  const char* op = kCenterTargets;
  Inputs in(op);
  add_targets(in, boxes, labels, weight, num_boxes);
  CenterTargetsArgs args;
  set_map(point_cloud_range, pillar_size, cells, size, args);
  set_tasks(task_of_class, args);
  check_count(op, "max_objects", max_objects);
  check_value(overlap >= 0 && overlap < 1, op, "overlap must be in [0, 1)", overlap);
  check_value(min_radius >= 0 && min_radius < (1 << 30), op, "min_radius must be in [0, 2^30)",
              min_radius);
  args.overlap = overlap;
  args.min_radius = min_radius;
  const Tensor heatmap =
      output(args.heatmap, {in["B"], args.classes, args.height, args.width}, boxes);
  const Tensor cell = output(args.cell, {in["B"], args.tasks, max_objects}, boxes);
  const Tensor box = output(args.box, {in["B"], args.tasks, max_objects}, boxes);
  const Tensor count = output(args.count, {in["B"], args.tasks}, boxes);
  if (boxes.is_meta()) return {heatmap, cell, box, count};
  Memory memory;
  args.targets = target_boxes(memory, boxes, labels, weight, num_boxes);
  args.max_objects = cell.size(2);
  run(op, boxes, args);
  return {heatmap, cell, box, count};
}

using Numbers = c10::ArrayRef<double>;

// The tensors and options of a call, checked: `args` has what needs no memory.
struct AnchorLossCall {
  const char* op;
  const Tensor &cls, &box;
  const OptionalTensor& direction;
  const Tensor &anchors, &boxes, &labels, &assigned;
  AnchorLossArgs args = {};

  void check_options(double dir_offset, double dir_limit, std::optional<Numbers> code_weights,
                     double beta, double negative_weight, std::string_view mode);
  void check_tensors();
  // Runs body(args) with everything in place.
  template <class Body>
  void bind(const Body& body);

 private:
  int64_t check_map(Inputs& in, const char* name, const Tensor& map);
};

// Values of a map for each anchor: [B, A * n, H, W] or [B, H, W, A, n].
int64_t AnchorLossCall::check_map(Inputs& in, const char* name, const Tensor& map) {
  const bool apart = map.dim() == 5;
  in.add(name, map, Dtypes::kFloats, apart ? "[B, H, W, A, *]" : "[B, *, H, W]");
  check_dtype(op, name, map.scalar_type(), "cls", cls.scalar_type());
  const int64_t values = map.sym_size(apart ? 4 : 1).guard_int(__FILE__, __LINE__);
  if (apart) return values;
  check_value(values % args.per_cell == 0, op,
              {name, " must be [B, A * n, H, W] with the A of anchors"}, values);
  return values / args.per_cell;
}

void AnchorLossCall::check_tensors() {
  Inputs in(op);
  in.add("anchors", anchors, Dtypes::kFloat32, "[H, W, A >= 1, 7]");
  args.per_cell = in["A"].guard_int(__FILE__, __LINE__);
  args.classes = check_map(in, "cls", cls);
  const int64_t codes = check_map(in, "box", box);
  check_value(codes >= 7 && codes <= kMostCodes, op, "box must have 7 to 10 values an anchor",
              codes);
  args.codes = static_cast<int>(codes);
  if (direction) {
    const int64_t bins = check_map(in, "direction", *direction);
    check_value(bins == 2, op, "direction must have 2 bins an anchor", bins);
  }
  add_targets(in, boxes, labels, std::nullopt, std::nullopt);
  if (codes >= 9) {
    check_size(boxes.sym_size(2).sym_ge(9), op, "boxes must have 9 columns, as box has velocities",
               boxes.sym_sizes());
  }
  in.add("assigned", assigned, Dtypes::kInt32, "[B, H, W, A]");
}

void AnchorLossCall::check_options(double dir_offset, double dir_limit,
                                   std::optional<Numbers> code_weights, double beta,
                                   double negative_weight, std::string_view mode) {
  const auto check_finite = [&](const char* name, double value) {
    check_value(std::isfinite(static_cast<float>(value)), op, {name, " must be finite in float32"},
                value);
  };
  check_finite("dir_offset", dir_offset);
  check_finite("dir_limit", dir_limit);
  check_finite("beta", beta);
  check_value(beta >= 0, op, "beta must be >= 0", beta);
  check_finite("negative_weight", negative_weight);
  check_value(!code_weights || code_weights->size() == static_cast<size_t>(args.codes), op,
              "code_weights must be one number a value of box", code_weights.value_or(Numbers()));
  for (int k = 0; k < args.codes; ++k) {
    args.code_weights[k] = code_weights ? (*code_weights)[k] : 1.0;
    check_finite("code_weights", args.code_weights[k]);
  }
  args.dir_offset = dir_offset;
  args.dir_limit = dir_limit;
  args.beta = beta;
  args.negative_weight = negative_weight;
  args.weighs_loss = parse_word(op, "mode", mode, "pcdet", "mmdet");
}

LossMap loss_map(const Tensor& map, int64_t per_cell) {
  const auto stride = map.strides();
  void* const data = const_cast<void*>(map.const_data_ptr());
  if (map.dim() == 5) return {data, {stride[0], stride[1], stride[2], stride[3], stride[4]}};
  const int64_t values = map.size(1) / per_cell;
  return {data, {stride[0], stride[2], stride[3], values * stride[1], stride[1]}};
}

template <class Body>
void AnchorLossCall::bind(const Body& body) {
  Memory memory;
  args.cls = loss_map(cls, args.per_cell);
  args.box = loss_map(box, args.per_cell);
  if (direction) args.direction = loss_map(*direction, args.per_cell);
  args.dtype = dtype_of(cls.scalar_type());
  args.batches = cls.size(0);
  args.height = anchors.size(0);
  args.width = anchors.size(1);
  check_value(args.num_anchors() < kIndexLimit, op, "anchors must be fewer than 2^31",
              anchors.sym_sizes());
  args.anchors = memory.of<float>(anchors);
  args.boxes = box_array(memory.rows(boxes));
  args.labels = memory.indices(labels);
  args.assigned = memory.of<int32_t>(assigned);
  body(args);
}

at::ScalarType loss_type(const Tensor& cls) {
  return cls.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

Tensor anchor_loss(const Tensor& cls, const Tensor& box, const OptionalTensor& direction,
                   const Tensor& anchors, const Tensor& boxes, const Tensor& labels,
                   const Tensor& assigned, double dir_offset, double dir_limit,
                   std::optional<Numbers> code_weights, double beta, double negative_weight,
                   std::string_view mode) {
  AnchorLossCall call{"anchor_loss", cls, box, direction, anchors, boxes, labels, assigned};
  call.check_tensors();
  call.check_options(dir_offset, dir_limit, code_weights, beta, negative_weight, mode);
  const Tensor loss = empty_beside({cls.sym_size(0), kLossTerms}, loss_type(cls), cls);
  if (cls.is_meta()) return loss;
  call.bind([&](AnchorLossArgs& args) {
    args.loss = loss.mutable_data_ptr();
    run(call.op, cls, args);
  });
  return loss;
}

// As the maps: convolutions in channels_last take gradients in channels_last.
std::tuple<Tensor, Tensor, Tensor> anchor_loss_backward(
    const Tensor& grad, const Tensor& cls, const Tensor& box, const OptionalTensor& direction,
    const Tensor& anchors, const Tensor& boxes, const Tensor& labels, const Tensor& assigned,
    double dir_offset, double dir_limit, std::optional<Numbers> code_weights, double beta,
    double negative_weight, std::string_view mode) {
  AnchorLossCall call{
      "_anchor_loss_backward", cls, box, direction, anchors, boxes, labels, assigned};
  call.check_tensors();
  call.check_options(dir_offset, dir_limit, code_weights, beta, negative_weight, mode);
  check_same(call.op, "grad", grad, "the loss", cls, {cls.sym_size(0), kLossTerms}, loss_type(cls));
  const Tensor grad_cls = at::empty_like(cls), grad_box = at::empty_like(box);
  const Tensor grad_direction =
      direction ? at::empty_like(*direction) : empty_beside({0}, cls.scalar_type(), cls);
  if (cls.is_meta()) return {grad_cls, grad_box, grad_direction};
  Memory memory;
  call.bind([&](const AnchorLossArgs& forward) {
    AnchorLossBackwardArgs args;
    args.forward = forward;
    args.grad = memory.of(grad);
    args.cls = loss_map(grad_cls, forward.per_cell);
    args.box = loss_map(grad_box, forward.per_cell);
    if (direction) args.direction = loss_map(grad_direction, forward.per_cell);
    run(call.op, cls, args);
  });
  return {grad_cls, grad_box, grad_direction};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("anchor_targets", anchor_targets, not_differentiable());
  ops.autocast("anchor_targets", {{}, {"boxes", "weight", "anchors"}});
  ops.add("center_targets", center_targets, not_differentiable());
  ops.autocast("center_targets", {{}, {"boxes", "weight"}});
  ops.add("anchor_loss", anchor_loss);
  ops.autocast("anchor_loss", {{{"cls", "box", "direction"}}, {"anchors", "boxes"}});
  ops.differentiable("anchor_loss", {"_anchor_loss_backward"});
  ops.add("_anchor_loss_backward", anchor_loss_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
