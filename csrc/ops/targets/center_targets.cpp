// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/targets/center_targets.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/targets/target_checks.h"

namespace torchvox {
namespace {

constexpr const char* kCenterTargets = "center_targets";

void set_map(c10::ArrayRef<double> range, c10::ArrayRef<double> pillar_size, int64_t cells,
             at::IntArrayRef size, CenterTargetsArgs& args) {
  check_range(kCenterTargets, range);
  check_value(pillar_size.size() == 2 || pillar_size.size() == 3, kCenterTargets,
              "pillar_size must be (x, y, z), or (x, y), in meters", pillar_size);
  check_value(cells >= 1 && cells < (1 << 24), kCenterTargets, "cells must be in [1, 2^24)", cells);
  for (int axis = 0; axis < 2; ++axis) {
    const auto length = static_cast<float>(pillar_size[axis]);
    check_value(std::isfinite(length) && length > 0, kCenterTargets,
                "pillar_size must be finite and > 0", pillar_size);
    args.pillar[axis] = length;
    args.low[axis] = static_cast<float>(range[axis]);
  }
  args.pillars_per_cell = static_cast<float>(cells);
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

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("center_targets", center_targets, not_differentiable());
  ops.autocast("center_targets", {{}, {"boxes", "weight"}});
}

}  // namespace
}  // namespace torchvox
