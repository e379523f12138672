// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/targets/anchor_targets.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/targets/target_checks.h"

namespace torchvox {
namespace {

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

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("anchor_targets", anchor_targets, not_differentiable());
  ops.autocast("anchor_targets", {{}, {"boxes", "weight", "anchors"}});
}

}  // namespace
}  // namespace torchvox
