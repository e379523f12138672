// SPDX-License-Identifier: Apache-2.0
//
// Rotated boxes: their overlaps, points in them, suppression and placing; maps of an anchor head,
// decoded and thinned out. Boxes have one column more than the rules read.
#include "csrc/kernels/boxes/box_query.h"
#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/boxes/place_boxes.h"
#include "csrc/kernels/boxes/rotated_iou.h"
#include "csrc/kernels/detection/decode_nms/decode_nms.h"
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
  args.batches = kBatches, args.a = box_array(side, 8, 1), args.b = box_array(side, 8, 2);
  args.is_volume = true;
  args.iou = side.room<float>(kBatches * kBoxes * kBoxes);
  side.run(args);
  backward.grad = side.put(Random(3).uniforms(kBatches * kBoxes * kBoxes));
  backward.a_columns = backward.b_columns = kColumns;
  side.room(&backward.grad_a, kBatches * kBoxes * kColumns, &backward.grad_b,
            kBatches * kBoxes * kColumns);
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
  args.inside = points_and_boxes(side), args.grid[0] = 3, args.grid[2] = 2, args.slots = 5;
  side.room(&args.index, args.rows() * args.cells() * args.slots, &args.count,
            args.rows() * args.cells());
  side.run(args);
}

// Three segments of more boxes than a tile of suppressing pairs has.
NmsArgs nms_of(Side& side, NmsMode mode) {
  NmsArgs nms;
  nms.segments = 3, nms.capacity = 200;
  nms.boxes = side.put(make_boxes(3 * 200, kColumns, 30, 6));
  nms.box_stride = kColumns, nms.segment_stride = 200 * kColumns;
  nms.group = {side.put(Random(7).integers(3 * 200, -1, 2)), false};
  nms.mode = mode, nms.num_thresholds = 2, nms.thresholds[0] = 1, nms.thresholds[1] = 0.1f;
  nms.most = 150;
  side.room(&nms.kept, 3 * 150, &nms.kept_counts, 3);
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

constexpr int32_t kHeight = 24, kWidth = 21, kCells = kHeight * kWidth, kPerCell = 4, kClasses = 3;
constexpr int64_t kRows = kCells * kPerCell;

HeadMap head_map(Side& side, int32_t channels, float low, float high) {
  std::vector<float> values = Random(channels).uniforms(kBatches * channels * kCells, low, high);
  values[500] = kNan;
  return {side.put(values), channels * kCells, kCells, kWidth, 1};
}

KERNEL_CASE(decode_nms, 0x0eaf0a1f395068ad, {"decode_kernels", {0, 1}}) {
  DecodeNmsArgs args;
  args.heads = 1, args.batches = kBatches;
  DecodeHead& head = args.head[0];
  head.map[kScoreMap] = head_map(side, kPerCell * kClasses, -6, 1);
  head.map[kBoxMap] = head_map(side, kPerCell * 7, -0.3f, 0.3f);
  head.map[kDirectionMap] = head_map(side, kPerCell * 2, -1, 1);
  head.anchors = side.put(make_anchors(kHeight, kWidth, kPerCell));
  head.height = kHeight, head.width = kWidth, head.per_cell = kPerCell, head.classes = kClasses;
  args.coder.bins = 2, args.coder.dir_offset = 0.78539f, args.coder.period = 3.14159274f;
  args.score_threshold = 0.1f, args.group = DecodeGroup::kClass, args.best_class = false;
  args.pre = 1000, args.post = 100;
  for (int k = 0; k < kClasses; ++k) args.label[k] = k, args.nms_threshold[k] = 0.01f;
  const int64_t rows = kBatches * args.rows();
  side.room(&args.boxes, rows * 7, &args.scores, rows, &args.labels, rows, &args.count, kBatches,
            &args.overflow, kBatches);
  side.run(args);
}

KERNEL_CASE(box_decode, 0x5317604928c49eaf) {
  BoxDecodeArgs args;
  args.coder.bins = 2, args.coder.dir_offset = 0.78539f, args.coder.period = 3.14159274f;
  args.rows = 2 * kRows, args.anchor_rows = kRows, args.dtype = DType::kHalf;
  args.deltas = side.put(Random(1).uniforms<Half>(args.rows * 7));
  args.direction = side.put(Random(2).uniforms<Half>(args.rows * 2));
  args.anchors = side.put(make_anchors(kHeight, kWidth, kPerCell));
  args.boxes = side.room<float>(args.rows * 7);
  side.run(args);
}

}  // namespace
