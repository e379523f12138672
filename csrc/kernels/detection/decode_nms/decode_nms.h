// SPDX-License-Identifier: Apache-2.0
//
// Entry of the ops over the maps of detection heads: decode + top-k + NMS. Steps on the GPU:
//
//   score, select   scores of all candidates, the `pre` best of them     select.cuh
//   decode, rank    boxes of those, in order of their keys               select.cuh
//   nms             the greedy choice in that order                      boxes/nms/
//   write           rows of the result                                   rows.h
//
// decode_nms.cu launches one kernel per step, or one for all steps up to NMS.
#pragma once

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/detection/box_decode.h"

namespace torchvox {

inline constexpr int kMostHeads = 8;
inline constexpr int kMostClasses = 64;  // of all heads together, and so the most groups

// The output of a convolution, [batches, channels, height, width], by its strides.
struct HeadMap {
  const void* data = nullptr;
  int64_t sample_stride = 0;  // in elements, as all strides
  int32_t channel_stride = 0, row_stride = 0, column_stride = 0;
};

// Maps of a head. Anchor heads have scores, boxes and, with bins, directions.
enum MapKind { kScoreMap, kBoxMap, kDirectionMap };
enum CenterMapKind { kOffsetMap = 1, kZMap, kSizeMap, kRotationMap, kVelocityMap, kMapKinds };

// Box i of a head is (y, x, a) in row-major order, a below per_cell.
struct DecodeHead {
  HeadMap map[kMapKinds];
  const float* anchors = nullptr;  // [boxes, 7], contiguous; null: a center head
  int32_t height = 0, width = 0, per_cell = 1, classes = 0;
  int32_t first_class = 0;  // classes of the heads before
  int64_t first_box = 0;  // boxes of the heads before
  int64_t first_pair = 0;  // (class, box) pairs of the heads before

  TORCHVOX_HD int64_t boxes() const { return int64_t{height} * width * per_cell; }
};

enum class DecodeGroup { kAll, kHead, kClass };

// Candidates are boxes with their best class, or all (class, box) pairs. The `pre` best candidates
// of every sample and group are decoded and go through NMS (nms.h), and the `post` best that
// remain, per group or per sample, are written. Order everywhere: score descending, then candidate
// (head, class where candidates are pairs, box) ascending.
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
  bool shared_pre = false;  // groups by class share the `pre` best boxes of a sample
  bool global_post = false;  // `post` per sample instead of per group
  int64_t pre = 0, post = 0;
  bool circle = false;
  float nms_threshold[kMostClasses] = {};  // per group
  int32_t label[kMostClasses] = {};  // per class

  // [batches, rows(), ..]; rows past count are 0, 0 and -1.
  float* boxes = nullptr;  // [.., box_values()]
  float* scores = nullptr;
  int32_t* labels = nullptr;
  int32_t* count = nullptr;  // [batches]
  int32_t* overflow = nullptr;  // [batches]: candidates beyond `pre`, summed over the groups

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

// CUDA: 0 one kernel per step, 1 one for all steps up to NMS where cooperative launches exist.
inline const PlanOverride decode_kernels_plan{"decode_kernels"};

// The origin of a candidate. Candidates of a sample are numbered by head, then by class if they are
// pairs, then by box.
struct Candidate {
  int head;
  int cls;  // in the head; -1: the best one
  int64_t box;
};

TORCHVOX_HD int64_t candidates_of(const DecodeNmsArgs& args, bool pairs) {
  if (args.heads == 0) return 0;
  const DecodeHead& last = args.head[args.heads - 1];
  return pairs ? last.first_pair + last.boxes() * last.classes : last.first_box + last.boxes();
}

TORCHVOX_HD Candidate candidate_of(const DecodeNmsArgs& args, bool pairs, int64_t number) {
  int h = 0;
  while (h + 1 < args.heads &&
         number >= (pairs ? args.head[h + 1].first_pair : args.head[h + 1].first_box)) {
    ++h;
  }
  const DecodeHead& head = args.head[h];
  if (!pairs) return {h, -1, number - head.first_box};
  const int64_t rest = number - head.first_pair, boxes = head.boxes();
  int cls = 0;
  for (int64_t begin = boxes; begin <= rest; begin += boxes) ++cls;
  return {h, cls, rest - cls * boxes};
}

TORCHVOX_HD int64_t pair_number(const DecodeHead& head, int cls, int64_t box) {
  return head.first_pair + cls * head.boxes() + box;
}

// Groups in which candidates are selected; with shared_pre they differ from those of NMS.
TORCHVOX_HD int selections_of(const DecodeNmsArgs& args) {
  return args.shared_pre ? 1 : args.groups();
}
TORCHVOX_HD bool selects_pairs(const DecodeNmsArgs& args) {
  return !args.best_class && !args.shared_pre;
}

struct NumberRange {
  int64_t begin, end;
};
// The candidates of a group: a range of their numbers.
TORCHVOX_HD NumberRange selection_range(const DecodeNmsArgs& args, int group) {
  const bool pairs = selects_pairs(args);
  if (args.shared_pre || args.group == DecodeGroup::kAll) return {0, candidates_of(args, pairs)};
  if (args.group == DecodeGroup::kHead) {
    const DecodeHead& head = args.head[group];
    const int64_t begin = pairs ? head.first_pair : head.first_box;
    return {begin, begin + head.boxes() * (pairs ? head.classes : 1)};
  }
  int h = 0;
  while (h + 1 < args.heads && group >= args.head[h + 1].first_class) ++h;
  const int64_t begin = pair_number(args.head[h], group - args.head[h].first_class, 0);
  return {begin, begin + args.head[h].boxes()};
}

// Candidates of the largest group of a sample.
inline int64_t most_candidates(const DecodeNmsArgs& args) {
  int64_t most = 0;
  for (int s = 0; s < selections_of(args); ++s) {
    const NumberRange range = selection_range(args, s);
    most = range.end - range.begin > most ? range.end - range.begin : most;
  }
  return most;
}

// The score as an integer in the same order, at least 1; 0 means no candidate.
TORCHVOX_HD uint32_t score_code(float score) { return float_bits(score) + 1; }
TORCHVOX_HD float score_of(uint32_t code) { return bit_cast<float>(code - 1); }

// Descending order of the keys is the order of the candidates.
TORCHVOX_HD uint64_t candidate_key(uint32_t score, int64_t number) {
  return uint64_t{score} << 32 | ~static_cast<uint32_t>(number);
}
TORCHVOX_HD uint32_t key_score(uint64_t key) { return static_cast<uint32_t>(key >> 32); }
TORCHVOX_HD int64_t key_number(uint64_t key) { return ~static_cast<uint32_t>(key); }

// Reads through the cache for data that no kernel writes, so that the compiler may move reads
// before writes.
template <class T>
TORCHVOX_HD float read_map(const T* at) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    return widen(T{__ldg(reinterpret_cast<const unsigned short*>(at))});
  } else {
    return __ldg(at);
  }
#else
  return widen(*at);
#endif
}

// One sample of the maps.
template <class T>
struct DecodeSample {
  const DecodeNmsArgs& args;
  int64_t sample;
  float least_logit;  // no logit below it passes
  static constexpr int kAtOnce = 4;

  TORCHVOX_HD float value(const HeadMap& map, int channel, int y, int x) const {
    return read_map(static_cast<const T*>(map.data) + sample * map.sample_stride +
                    int64_t{channel} * map.channel_stride + int64_t{y} * map.row_stride +
                    int64_t{x} * map.column_stride);
  }

  struct Place {
    int y, x, a;
  };
  TORCHVOX_HD Place place(const DecodeHead& head, int64_t box) const {
    const auto number = static_cast<uint32_t>(box);
    const auto per_cell = static_cast<uint32_t>(head.per_cell);
    const uint32_t cell = per_cell == 1 ? number : number / per_cell;
    const uint32_t y = cell / static_cast<uint32_t>(head.width);
    return {static_cast<int>(y), static_cast<int>(cell - y * head.width),
            static_cast<int>(number - cell * per_cell)};
  }

  TORCHVOX_HD uint32_t passing(float logit) const {
    if (!is_finite(logit) || logit < least_logit) return 0;
    const float score = portable::sigmoid(logit), least = args.score_threshold;
    return (args.closed ? score >= least : score > least) ? score_code(score) : 0;
  }

  TORCHVOX_HD uint32_t class_score(const DecodeHead& head, int64_t box, int cls) const {
    const Place at = place(head, box);
    return passing(value(head.map[kScoreMap], at.a * head.classes + cls, at.y, at.x));
  }

  // The lowest class of the greatest finite logit, -1 where none is finite.
  TORCHVOX_HD int best_class(const DecodeHead& head, int64_t box, float* logit) const {
    const Place at = place(head, box);
    int best = -1;
    for (int first = 0; first < head.classes; first += kAtOnce) {
      float next[kAtOnce];  // all loads are in flight before the first is used
      for (int k = 0; k < kAtOnce; ++k) {
        const int c = first + k;
        next[k] = c < head.classes ? value(head.map[kScoreMap], at.a * head.classes + c, at.y, at.x)
                                   : portable::not_a_number();
      }
      for (int k = 0; k < kAtOnce; ++k) {
        if (is_finite(next[k]) && (best < 0 || next[k] > *logit)) {
          best = first + k;
          *logit = next[k];
        }
      }
    }
    return best;
  }

  TORCHVOX_HD uint32_t score(bool pairs, int64_t number) const {
    const Candidate c = candidate_of(args, pairs, number);
    if (pairs) return class_score(args.head[c.head], c.box, c.cls);
    float logit = 0;
    return best_class(args.head[c.head], c.box, &logit) < 0 ? 0 : passing(logit);
  }

  // The label of a candidate that passed.
  TORCHVOX_HD int32_t label(const Candidate& c) const {
    const DecodeHead& head = args.head[c.head];
    float logit = 0;
    const int cls = c.cls >= 0 ? c.cls : best_class(head, c.box, &logit);
    return args.label[head.first_class + cls];
  }

  // Writes box[box_values()]; false if it is not finite or outside the range.
  TORCHVOX_HD bool decode(const Candidate& c, float* box) const {
    const DecodeHead& head = args.head[c.head];
    const Place at = place(head, c.box);
    if (args.centers) {
      center_box(head, at, box);
    } else {
      anchor_box(head, at, c.box, box);
    }
    const int values = args.box_values();
    bool valid = true;
    for (int k = 0; k < kMostBoxValues; ++k) {
      if (k < values) valid = valid && is_finite(box[k]);
    }
    if (!args.has_range) return valid;
    for (int k = 0; k < 3; ++k) {
      valid = valid && box[k] >= args.range[k] && box[k] <= args.range[k + 3];
    }
    return valid;
  }

 private:
  TORCHVOX_HD void anchor_box(const DecodeHead& head, const Place& at, int64_t box_number,
                              float* box) const {
    float delta[kMostDeltas], anchor[7];
    for (int k = 0; k < kMostDeltas; ++k) {
      const int channel = at.a * args.coder.values + k;
      delta[k] = k < args.coder.values ? value(head.map[kBoxMap], channel, at.y, at.x) : 0;
    }
    for (int k = 0; k < 7; ++k) anchor[k] = head.anchors[box_number * 7 + k];
    int bin = 0;
    if (args.coder.bins > 0) {
      bin = direction_bin(args.coder, [&](int k) {
        return value(head.map[kDirectionMap], at.a * args.coder.bins + k, at.y, at.x);
      });
    }
    decode_anchor(args.coder, delta, anchor, bin, box);
  }

  TORCHVOX_HD void center_box(const DecodeHead& head, const Place& at, float* box) const {
    const auto read = [&](int kind, int channel) {
      return value(head.map[kind], channel, at.y, at.x);
    };
    CenterValues values = {};
    for (int k = 0; k < 2; ++k) values.offset[k] = read(kOffsetMap, k);
    values.z = read(kZMap, 0);
    for (int k = 0; k < 3; ++k) values.size[k] = read(kSizeMap, k);
    for (int k = 0; k < 2; ++k) values.rotation[k] = read(kRotationMap, k);
    for (int k = 0; k < 2 && args.center.velocity; ++k) values.velocity[k] = read(kVelocityMap, k);
    decode_center(args.center, values, at.x, at.y, box);
  }
};

// A logit below which no score passes, slightly lower than that of the threshold to be safe.
// Subnormal scores are too coarse for that margin: a threshold that small skips no sigmoid.
inline float least_logit(const DecodeNmsArgs& args) {
  const double least = args.score_threshold * (1.0 - 1e-6);
  if (!(least > 1e-37)) return -portable::infinity();
  if (least >= 1) return 13.0f;  // 1 - sigmoid(13) > 1e-6
  return static_cast<float>(std::log(least / (1.0 - least)) - 1e-3);
}

}  // namespace torchvox
