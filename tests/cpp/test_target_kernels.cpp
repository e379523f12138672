// SPDX-License-Identifier: Apache-2.0
//
// Training targets of anchors and centers, and the loss of anchors.
#include <algorithm>

#include "csrc/kernels/targets/anchor_loss.h"
#include "csrc/kernels/targets/anchor_targets.h"
#include "csrc/kernels/targets/center_targets.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kColumns = 9, kBatches = 2, kBoxes = 30;
constexpr int64_t kHeight = 21, kWidth = 31, kPerCell = 4, kCells = kHeight * kWidth;
constexpr int64_t kAnchors = kCells * kPerCell;

TargetBoxes make_targets(Side& side) {
  TargetBoxes targets;
  targets.boxes = {side.put(make_boxes(kBatches * kBoxes, kColumns, 12, 1)), kBoxes, kColumns,
                   kColumns * kBoxes};
  targets.labels = {side.put(Random(2).integers(kBatches * kBoxes, -1, 3)), false};
  targets.weight = side.put(Random(3).integers<float>(kBatches * kBoxes, 0, 4));
  targets.num_boxes = {side.put<int32_t>({kBoxes + 3, kBoxes / 2}), false};
  targets.batches = kBatches;
  return targets;
}

KERNEL_CASE(anchor_targets, 0xd872a33de4936193) {
  AnchorTargetsArgs args;
  args.targets = make_targets(side);
  args.anchors = side.put(make_anchors(kHeight, kWidth, kPerCell));
  args.cells = kCells, args.per_cell = kPerCell;
  for (int a = 0; a < kPerCell; ++a) args.rule[a] = {a - 1, 0.6f, 0.45f, 0.3f};
  args.mmdet = true;
  side.room(&args.assigned, kBatches * kAnchors, &args.num_pos, kBatches);
  side.run(args);
}

KERNEL_CASE(center_targets, 0x79d06bc7c7f1a4ed) {
  constexpr int64_t kSlots = 12;
  CenterTargetsArgs args;
  args.targets = make_targets(side), args.pillar[0] = args.pillar[1] = 0.25f;
  args.pillars_per_cell = 2, args.height = kHeight, args.width = kWidth;
  args.classes = 3, args.tasks = 2, args.task[1] = args.task[2] = 1, args.max_objects = kSlots;
  side.room(&args.heatmap, kBatches * 3 * kCells, &args.cell, kBatches * 2 * kSlots, &args.box,
            kBatches * 2 * kSlots, &args.count, kBatches * 2);
  side.run(args);
}

// [batches, values, cells].
LossMap loss_map(float* data, int64_t values) {
  const int64_t channels = kPerCell * values;
  return {data, {channels * kCells, kWidth, 1, values * kCells, kCells}};
}

KERNEL_CASE(anchor_loss, 0xb85f4910ee49dea6) {
  AnchorLossBackwardArgs backward;
  AnchorLossArgs& args = backward.forward;
  const auto add_map = [&](LossMap* map, LossMap* grad, int64_t values) {
    const int64_t count = kBatches * kAnchors * values;
    *map = loss_map(side.put(Random(values).uniforms(count, -4, 4)), values);
    *grad = loss_map(side.room<float>(count), values);
  };
  add_map(&args.cls, &backward.cls, 3);
  add_map(&args.box, &backward.box, 7);
  add_map(&args.direction, &backward.direction, 2);
  const TargetBoxes targets = make_targets(side);
  args.batches = kBatches, args.height = kHeight, args.width = kWidth, args.per_cell = kPerCell;
  args.classes = 3;
  args.anchors = side.put(make_anchors(kHeight, kWidth, kPerCell));
  args.boxes = targets.boxes, args.labels = targets.labels;
  args.assigned = side.put(Random(4).integers(kBatches * kAnchors, -2, 4));
  args.dir_offset = 0.78539;
  std::fill(args.code_weights, args.code_weights + kMostCodes, 0.5);
  args.beta = 1.0 / 9;
  args.loss = side.room<float>(kBatches * kLossTerms);
  side.run(args);
  backward.grad = side.put<float>({1, 2, 0.2f, -1, 0.5f, 3});
  side.run(backward);
}

}  // namespace
