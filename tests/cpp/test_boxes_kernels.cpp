// SPDX-License-Identifier: Apache-2.0
//
// Rotated boxes: their overlaps, points in them, suppression and placing. Boxes have one column
// more than the rules read.
#include "csrc/kernels/boxes/box_query.h"
#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/boxes/place_boxes.h"
#include "csrc/kernels/boxes/rotated_iou.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kColumns = 8, kBatches = 2, kPoints = 2000, kBoxes = 70;

BoxArray box_array(Side& side, float reach, uint64_t seed) {
  const std::vector<float> boxes = make_boxes(kBatches * kBoxes, kColumns, reach, seed);
  return {side.put(boxes), kBoxes, kColumns, kBoxes * kColumns};
}

KERNEL_CASE(rotated_iou, 0x90b09de765db783a) {
  RotatedIouBackwardArgs backward;
  RotatedIouArgs& args = backward.forward;
  args.batches = kBatches;
  args.a = box_array(side, 8, 1);
  args.b = box_array(side, 8, 2);
  args.is_volume = true;
  args.iou = side.room<float>(kBatches * kBoxes * kBoxes);
  side.run(args);
  backward.grad = side.put(Random(3).uniforms(kBatches * kBoxes * kBoxes));
  backward.a_columns = backward.b_columns = kColumns;
  backward.grad_a = side.room<float>(kBatches * kBoxes * kColumns);
  backward.grad_b = side.room<float>(kBatches * kBoxes * kColumns);
  side.run(backward);
}

PointsInBoxesArgs points_and_boxes(Side& side) {
  PointsInBoxesArgs args;
  args.batches = kBatches;
  args.points = {side.put(make_points(kBatches * kPoints, 3, 8, 4)), kPoints, 3, 3 * kPoints};
  args.boxes = box_array(side, 8, 5);
  args.lengths = {side.put<int32_t>({1000, 1 << 30}), false};
  args.box_lengths = {side.put<int32_t>({1 << 30, 12}), false};
  args.margin = 0.01;
  return args;
}

KERNEL_CASE(points_in_boxes, 0x89ad4d209b908c5f) {
  PointsInBoxesArgs args = points_and_boxes(side);
  args.mode = PointsInBoxesMode::kMask;
  args.out = side.room<bool>(kBatches * kBoxes * kPoints);
  side.run(args);
}

KERNEL_CASE(box_query, 0xc9e722cbf11c1769) {
  BoxQueryArgs args;
  args.inside = points_and_boxes(side);
  args.grid[0] = 3, args.grid[2] = 2;
  args.slots = 5;
  args.index = side.room<int32_t>(args.rows() * args.cells() * args.slots);
  args.count = side.room<int32_t>(args.rows() * args.cells());
  side.run(args);
}

// Three segments of more boxes than a tile of suppressing pairs has.
NmsArgs nms_of(Side& side, NmsMode mode) {
  NmsArgs nms;
  nms.segments = 3, nms.capacity = 200;
  nms.boxes = side.put(make_boxes(3 * 200, kColumns, 30, 6));
  nms.box_stride = kColumns, nms.segment_stride = 200 * kColumns;
  nms.group = {side.put(Random(7).integers(3 * 200, -1, 2)), false};
  nms.mode = mode;
  nms.num_thresholds = 2;
  nms.thresholds[0] = 1, nms.thresholds[1] = 0.1f;
  nms.most = 150;
  nms.kept = side.room<int32_t>(3 * 150);
  nms.kept_counts = side.room<int32_t>(3);
  return nms;
}

KERNEL_CASE(nms, 0xb109c86ce25293b7) {
  NmsArgs args = nms_of(side, NmsMode::kCircle);
  args.counts = side.put<int32_t>({200, 63, 0});
  side.run(args);
}

KERNEL_CASE(rotated_nms, 0x51c877d80976d2ca, {"nms_order", {0, 1}}) {
  RotatedNmsArgs args;
  args.nms = nms_of(side, NmsMode::kRotated);
  args.scores = side.put(make_points(3 * 200, 1, 6, 8));  // many are equal
  args.lengths = {side.put<int32_t>({130, 200, 1}), false};
  side.run(args);
}

KERNEL_CASE(place_boxes, 0x44f02e5eaaf23cfc) {
  PlaceBoxesArgs args;
  args.boxes = box_array(side, 60, 9);
  args.batches = kBatches, args.count = 50, args.tries = 10, args.columns = kColumns;
  args.candidates = side.put(make_boxes(kBatches * 50 * 10, kColumns, 60, 10));
  args.group = {side.put(Random(11).integers(kBatches * 50, -1, 11)), false};
  args.mode = PlaceMode::kGreedy;
  args.choice = side.room<int32_t>(kBatches * 50);
  side.run(args);
}

}  // namespace
