// SPDX-License-Identifier: Apache-2.0
//
// The ordered candidates of every group, those that NMS keeps, and the rows of the result: for host
// and device.
#pragma once

#include "csrc/kernels/boxes/nms/nms.h"
#include "csrc/kernels/detection/decode_nms/decode_nms.h"

namespace torchvox {

// Group g of sample b is segment b * groups + g.
struct DecodeRows {
  int64_t segments;
  int64_t capacity;  // most candidates of a segment before NMS
  int64_t most;  // most candidates of a segment after NMS
  uint64_t* keys;  // [segments, capacity], descending
  float* boxes;  // [segments, capacity, box_values()]
  int32_t* labels;  // [segments, capacity]
  int32_t* counts;  // [segments]; allocated by the caller
  int32_t* kept;  // [segments, most]: places of the kept ones, ascending
  int32_t* kept_counts;  // [segments]

  DecodeRows(const DecodeNmsArgs& args, Workspace& memory) {
    const int64_t candidates = most_candidates(args);
    segments = args.batches * args.groups();
    capacity = args.pre < candidates ? args.pre : candidates;
    most = args.post < capacity ? args.post : capacity;
    keys = memory.take<uint64_t>(segments * capacity);
    boxes = memory.take<float>(segments * capacity * args.box_values());
    labels = memory.take<int32_t>(segments * capacity);
    counts = nullptr;
    kept = memory.take<int32_t>(segments * most);
    kept_counts = memory.take<int32_t>(segments);
  }

  NmsArgs nms(const DecodeNmsArgs& args) const {
    NmsArgs nms;
    nms.boxes = boxes;
    nms.segments = segments;
    nms.capacity = capacity;
    nms.box_stride = args.box_values();
    nms.segment_stride = capacity * args.box_values();
    nms.counts = counts;
    nms.mode = args.circle ? NmsMode::kCircle : NmsMode::kRotated;
    nms.num_thresholds = args.groups();
    for (int g = 0; g < args.groups(); ++g) nms.thresholds[g] = args.nms_threshold[g];
    nms.most = most;
    nms.kept = kept;
    nms.kept_counts = kept_counts;
    return nms;
  }
  bool any() const { return segments * most > 0; }

  TORCHVOX_HD uint64_t kept_key(int64_t segment, int64_t k) const {
    return keys[segment * capacity + kept[segment * most + k]];
  }

  // How many kept ones of a segment have a greater key.
  TORCHVOX_HD int64_t kept_above(int64_t segment, uint64_t key) const {
    return first_where(int64_t{0}, int64_t{kept_counts[segment]},
                       [&](int64_t k) { return kept_key(segment, k) <= key; });
  }

  TORCHVOX_HD int64_t rows_used(const DecodeNmsArgs& args, int64_t sample) const {
    const int groups = args.groups();
    int64_t used = 0;
    for (int g = 0; g < groups && any_kept(); ++g) used += kept_counts[sample * groups + g];
    return used < args.rows() ? used : args.rows();
  }

  // The row in its sample of the k-th kept one of a segment; may be beyond rows().
  TORCHVOX_HD int64_t row_of(const DecodeNmsArgs& args, int64_t segment, int64_t k) const {
    const int groups = args.groups(), own = static_cast<int>(segment % groups);
    const int64_t first = segment - own;
    int64_t row = k;
    if (args.global_post) {
      const uint64_t key = kept_key(segment, k);
      for (int g = 0; g < groups; ++g) row += g == own ? 0 : kept_above(first + g, key);
    } else {
      for (int g = 0; g < own; ++g) row += kept_counts[first + g];
    }
    return row;
  }

  TORCHVOX_HD void write_kept(const DecodeNmsArgs& args, int64_t segment, int64_t k) const {
    const int64_t row = row_of(args, segment, k);
    if (row >= args.rows()) return;
    const int64_t to = segment / args.groups() * args.rows() + row;
    const int64_t from = segment * capacity + kept[segment * most + k];
    const int values = args.box_values();
    for (int v = 0; v < values; ++v) args.boxes[to * values + v] = boxes[from * values + v];
    args.scores[to] = score_of(key_score(keys[from]));
    args.labels[to] = labels[from];
  }
  TORCHVOX_HD void write_unused(const DecodeNmsArgs& args, int64_t sample, int64_t row) const {
    const int64_t to = sample * args.rows() + row;
    const int values = args.box_values();
    for (int v = 0; v < values; ++v) args.boxes[to * values + v] = 0;
    args.scores[to] = 0;
    args.labels[to] = -1;
  }

 private:
  TORCHVOX_HD bool any_kept() const { return most > 0; }
};

// Candidates of a sample beyond `pre`, from the number that passes in each of its selections.
template <class Count>
TORCHVOX_HD int32_t overflow_of(const DecodeNmsArgs& args, const Count* passed) {
  int64_t over = 0;
  for (int s = 0; s < selections_of(args); ++s) {
    over += passed[s] > args.pre ? static_cast<int64_t>(passed[s]) - args.pre : 0;
  }
  return static_cast<int32_t>(over < 0x7fffffff ? over : 0x7fffffff);
}

}  // namespace torchvox
