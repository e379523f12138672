// SPDX-License-Identifier: Apache-2.0
//
// Maps of an anchor head, decoded and thinned out.
#include "csrc/kernels/detection/decode_nms/decode_nms.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int32_t kHeight = 24, kWidth = 21, kCells = kHeight * kWidth, kPerCell = 4, kClasses = 3;
constexpr int64_t kBatches = 2, kRows = kCells * kPerCell;

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
  args.score_threshold = 0.1f;
  args.group = DecodeGroup::kClass;
  args.best_class = false;
  args.pre = 1000, args.post = 100;
  for (int k = 0; k < kClasses; ++k) args.label[k] = k, args.nms_threshold[k] = 0.01f;
  const int64_t rows = kBatches * args.rows();
  args.boxes = side.room<float>(rows * 7);
  args.scores = side.room<float>(rows);
  args.labels = side.room<int32_t>(rows);
  args.count = side.room<int32_t>(kBatches);
  args.overflow = side.room<int32_t>(kBatches);
  side.run(args);
}

KERNEL_CASE(box_decode, 0x5317604928c49eaf) {
  BoxDecodeArgs args;
  args.coder.bins = 2, args.coder.dir_offset = 0.78539f, args.coder.period = 3.14159274f;
  args.rows = 2 * kRows, args.anchor_rows = kRows;
  args.dtype = DType::kHalf;
  args.deltas = side.put(Random(1).uniforms<Half>(args.rows * 7));
  args.direction = side.put(Random(2).uniforms<Half>(args.rows * 2));
  args.anchors = side.put(make_anchors(kHeight, kWidth, kPerCell));
  args.boxes = side.room<float>(args.rows * 7);
  side.run(args);
}

}  // namespace
