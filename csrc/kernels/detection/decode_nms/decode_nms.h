// SPDX-License-Identifier: Apache-2.0
//
// Entry of the ops over the maps of detection heads: decode + top-k + NMS. Steps on the GPU:
//
//   score, select   scores of all candidates, the `pre` best of them     select.cuh
//   decode, rank    boxes of those, in order of their keys               select.cuh
//   nms             the greedy choice in that order                      boxes/nms/
//   write           rows of the result                                   rows.h
//
// rule.h says what a candidate is and scores. decode_nms.cu launches a kernel a step, fused.cu one
// for all up to NMS; work.cuh is their workspace. CPU: decode_nms_cpu.cpp.
#pragma once

#include "csrc/kernels/detection/box_decode.h"

namespace torchvox {

inline constexpr int kMostHeads = 8;
inline constexpr int kMostClasses = 64;  // of all heads; so of groups too

// The output of a convolution, [batches, channels, height, width], where it lies.
struct HeadMap {
  const void* data = nullptr;
  int64_t sample_stride = 0;  // in elements, as all strides
  int32_t channel_stride = 0;
  int32_t row_stride = 0;
  int32_t column_stride = 0;
};

// Maps of a head. Anchor heads have scores, boxes and, with bins, directions.
enum MapKind { kScoreMap, kBoxMap, kDirectionMap };
enum CenterMapKind { kOffsetMap = 1, kZMap, kSizeMap, kRotationMap, kVelocityMap, kMapKinds };

// Box i of a head is (y, x, a) in row-major order, a below per_cell.
struct DecodeHead {
  HeadMap map[kMapKinds];
  const float* anchors = nullptr;  // [boxes, 7], contiguous; null: a center head
  int32_t height = 0;
  int32_t width = 0;
  int32_t per_cell = 1;
  int32_t classes = 0;
  int32_t first_class = 0;  // classes of the heads before
  int64_t first_box = 0;  // boxes of the heads before
  int64_t first_pair = 0;  // (class, box) pairs of the heads before

  TORCHVOX_HD int64_t boxes() const { return int64_t{height} * width * per_cell; }
};

enum class DecodeGroup { kAll, kHead, kClass };

// Candidates are boxes with their best class, or (class, box) pairs of each class. Of every sample
// and group the `pre` best candidates, decoded, are thinned out greedily (nms.h), and the `post`
// best that remain, of a group or of the sample, are written. Order everywhere: score descending,
// then candidate (head, class where candidates are pairs, box) ascending.
struct DecodeNmsArgs {
  DecodeHead head[kMostHeads];
  int heads = 0;
  DType dtype = DType::kFloat;  // of the maps
  int64_t batches = 0;
  bool centers = false;
  BoxCoder coder;  // of anchor heads
  CenterCoder center;  // of center heads
  bool has_range = false;
  float range[6] = {};  // of box centers, inclusive

  float score_threshold = 0;
  bool closed = true;  // a score that equals the threshold passes
  DecodeGroup group = DecodeGroup::kAll;
  bool best_class = true;  // candidates are boxes
  bool shared_pre = false;  // groups by class: `pre` boxes of a sample by their best class first
  bool global_post = false;
  int64_t pre = 0;
  int64_t post = 0;
  bool circle = false;
  float nms_threshold[kMostClasses] = {};  // a group
  int32_t label[kMostClasses] = {};  // a class

  // [batches, rows(), ..]; rows past count are 0, 0 and -1.
  float* boxes = nullptr;  // [.., box_values()]
  float* scores = nullptr;
  int32_t* labels = nullptr;
  int32_t* count = nullptr;  // [batches]
  int32_t* overflow = nullptr;  // [batches] candidates beyond `pre`, of all groups

  TORCHVOX_HD int box_values() const {
    return centers ? (center.velocity ? 9 : 7) : coder.box_values();
  }
  TORCHVOX_HD int classes() const {
    return heads > 0 ? head[heads - 1].first_class + head[heads - 1].classes : 0;
  }
  TORCHVOX_HD int groups() const {
    return group == DecodeGroup::kAll ? 1 : group == DecodeGroup::kHead ? heads : classes();
  }
  TORCHVOX_HD int64_t rows() const { return global_post ? post : post * groups(); }
};

TORCHVOX_KERNEL(DecodeNmsArgs);

}  // namespace torchvox
