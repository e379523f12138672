// SPDX-License-Identifier: Apache-2.0
//
// From the selected candidates to ordered rows of boxes: decoding, and the place of each by
// counting the keys above it, which is exact, needs no passes and costs no more than NMS does.
#pragma once

#include "csrc/kernels/detection/decode_nms/work.cuh"

namespace torchvox {

inline constexpr int kRankWarps = 8;
inline constexpr int kRankEach = 4;  // candidates of a warp: each key it reads serves so many
inline constexpr int kRankTile = kRankWarps * kRankEach;

__device__ __forceinline__ int64_t listed_of(const DetectWork& work, int64_t selection) {
  return min(int64_t{work.listed[selection]}, work.listed_capacity);
}

// One candidate of the list. Of boxes that are shared by the classes, the pair with each class.
template <class T>
inline __device__ void decode_listed(const DetectArgs& args, const DetectWork& work,
                                     int64_t selection, int64_t i) {
  const int64_t b = selection / work.selections;
  const DetectSample<T> sample{args, b, work.least_logit};
  const int64_t at = selection * work.listed_capacity + i;
  const uint64_t key = work.list[at];
  const Candidate c = candidate_of(args, work.pairs, key_number(key));
  const int32_t label = args.shared_pre ? 0 : sample.label(c);
  float box[kMostBoxValues];
  const bool live = sample.decode(c, box);
  const int values = args.box_values();
#pragma unroll
  for (int v = 0; v < kMostBoxValues; ++v) {
    if (v < values) work.boxes[at * values + v] = box[v];
  }
  if (!args.shared_pre) {
    work.live[at] = live ? key : 0;
    work.labels[at] = label;
    return;
  }
  const DetectHead& head = args.head[c.head];
  const int groups = args.groups();
  for (int g = 0; g < groups; ++g) {
    const int cls = g - head.first_class;
    uint32_t score = 0;
    if (live && cls >= 0 && cls < head.classes) score = sample.class_score(head, c.box, cls);
    work.live[(b * groups + g) * work.listed_capacity + i] =
        score > 0 ? candidate_key(score, pair_number(head, cls, c.box)) : 0;
  }
}

// Moves four candidates of a segment to their places, ready for NMS; a warp calls.
inline __device__ void rank_listed(const DetectArgs& args, const DetectWork& work, int64_t segment,
                                   int64_t first) {
  const int lane = threadIdx.x % 32;
  const int groups = args.groups();
  const int64_t selection = args.shared_pre ? segment / groups : segment;
  const int64_t listed = listed_of(work, selection), capacity = work.rows.capacity;
  if (first >= listed) return;
  const uint64_t* const live = work.live + segment * work.listed_capacity;
  const uint64_t* const list = work.list + selection * work.listed_capacity;
  // A candidate that is not selected lies below all that are: it takes part in no rank but its own.
  const bool over = listed > capacity;
  uint64_t own[kRankEach], all[kRankEach];
  uint32_t above[kRankEach] = {}, above_all[kRankEach] = {};
#pragma unroll
  for (int q = 0; q < kRankEach; ++q) {
    own[q] = first + q < listed ? live[first + q] : 0;
    all[q] = over && first + q < listed ? list[first + q] : 0;
  }
  for (int64_t j = lane; j < listed; j += 32) {
    const uint64_t other = live[j], any = over ? list[j] : 0;
#pragma unroll
    for (int q = 0; q < kRankEach; ++q) {
      above[q] += other > own[q];
      above_all[q] += any > all[q];
    }
  }
  uint64_t key = 0;  // of the candidate that this lane looks after
  int64_t place = 0;
#pragma unroll
  for (int q = 0; q < kRankEach; ++q) {
    const uint32_t at = warp_sum(above[q]), selected = over ? warp_sum(above_all[q]) : 0;
    if (own[q] == 0 || selected >= capacity) continue;
    const int64_t to = segment * capacity + at;
    const int64_t from = selection * work.listed_capacity + first + q;
    const int values = args.box_values();
    if (lane < values) work.rows.boxes[to * values + lane] = work.boxes[from * values + lane];
    if (lane != q) continue;
    key = own[q];
    place = at;
    work.rows.labels[to] = args.shared_pre ? args.label[segment % groups] : work.labels[from];
  }
  __syncwarp();
  if (key == 0) return;
  work.rows.keys[segment * capacity + place] = key;
  atomicAdd(&work.rows.counts[segment], 1);
  if (work.rows.most > 0) work.scratch.write(work.nms, segment, place, place);
}

// One row of the result, or what a sample has of counts.
__device__ __forceinline__ void write_item(const DetectArgs& args, const DetectWork& work,
                                           int64_t item) {
  const DetectRows& rows = work.rows;
  const int64_t kept = rows.segments * rows.most;
  if (item < kept) {
    const int64_t segment = item / rows.most, k = item - segment * rows.most;
    if (k < rows.kept_counts[segment]) rows.write_kept(args, segment, k);
    return;
  }
  item -= kept;
  const int64_t all = args.batches * args.rows();
  if (item < all) {
    const int64_t b = item / args.rows(), row = item - b * args.rows();
    if (row >= rows.rows_used(args, b)) rows.write_unused(args, b, row);
    return;
  }
  const int64_t b = item - all;
  args.count[b] = static_cast<int32_t>(rows.rows_used(args, b));
  args.overflow[b] = work.chunks == 0 ? 0 : overflow_of(args, work.found + b * work.selections);
}

}  // namespace torchvox
