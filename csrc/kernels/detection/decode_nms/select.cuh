// SPDX-License-Identifier: Apache-2.0
//
// Workspace and launch shape of the kernels of decode + top-k + NMS, and the `pre` best candidates
// of every selection: a radix select over ten bits of the score per level. Each level lists the
// candidates above its cut; equal scores are ordered by number. One block handles one chunk of the
// candidates of a selection.
#pragma once

#include "csrc/kernels/boxes/nms/scratch.cuh"
#include "csrc/kernels/core/grid_barrier.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/detection/decode_nms/rows.h"

namespace torchvox {

inline constexpr int kDecodeThreads = 512;
inline constexpr int kFusedThreads = 1024;
inline constexpr int64_t kFusedCandidates = int64_t{1} << 21;  // above, more threads are faster
inline constexpr int kDigitBits = 10;  // of the 30 bits of a score code
inline constexpr int kDigits = 1 << kDigitBits;
inline constexpr int kLevels = 3;
inline constexpr int kDecodeBarriers = kLevels + 3;

// The state of a selection after a level: the digits of the score code at the cut, and how many
// candidates are above it.
struct SelectState {
  uint32_t prefix, above;
  uint32_t done;  // all selected candidates are in the list
};

struct DecodeWork {
  bool pairs;  // candidates are (class, box) pairs
  int selections;  // per sample
  int64_t numbers;  // candidates per sample
  int64_t chunk;  // candidates per block
  int64_t chunks;  // per selection
  int64_t listed_capacity;  // entries of a list, at least as many as are selected

  bool fused;  // one cooperative kernel up to NMS

  // All bits set before the first kernel, as one range.
  GridBarrier* barriers;  // [kDecodeBarriers]
  uint32_t* histogram;  // [batches, selections, levels, digits]: counts, minus one
  int64_t set_bytes;

  // Cleared by the first kernel, as is rows.counts.
  uint32_t* listed;  // [batches, selections]
  uint32_t* unfinished;  // [levels]: selections that need another level

  uint32_t* passed;  // [batches, selections]: candidates that pass the score threshold
  SelectState* state;  // [levels, batches, selections]: after each level
  uint32_t* ties;  // [batches, selections, chunks]
  uint32_t* scores;  // [batches, numbers]: score codes, 0 for none
  uint64_t* list;  // [batches, selections, listed_capacity] selected keys in any order
  uint64_t* live;  // [segments, listed_capacity] the same, but 0 for boxes that may not be kept
  float* boxes;  // [batches, selections, listed_capacity, box_values()]
  int32_t* labels;  // [batches, selections, listed_capacity]
  float least_logit;
  DecodeRows rows;
  NmsArgs nms;
  NmsScratch scratch;

  int64_t bytes;

  DecodeWork(const DecodeNmsArgs& args, const Target& target, void* base)
      : DecodeWork(args, target, Workspace(base)) {}

 private:
  DecodeWork(const DecodeNmsArgs& args, const Target& target, Workspace memory)
      : pairs(selects_pairs(args)),
        selections(selections_of(args)),
        numbers(candidates_of(args, pairs)),
        least_logit(torchvox::least_logit(args)),
        rows(args, memory),
        scratch(rows.nms(args), memory) {
    const int64_t all = args.batches * selections, most = most_candidates(args);
    const int64_t multiprocessors = target.multiprocessors > 0 ? target.multiprocessors : 1;
    const int64_t forced = decode_kernels_plan.value();
    const bool preferred = forced == kAutomatic ? all * most <= kFusedCandidates : forced == 1;
    fused = preferred && target.cooperative_launch;
    // One block per multiprocessor, or about two, whatever the batch.
    const int64_t even = ceil_div<int64_t>(all * most, (fused ? 1 : 2) * multiprocessors);
    const int64_t least = fused ? kFusedThreads : kDecodeThreads;
    chunk = ceil_div<int64_t>(even > 0 ? even : 1, least) * least;
    if (!fused && chunk > 8 * least) chunk = 8 * least;
    chunks = ceil_div<int64_t>(most, chunk);
    // With room for more than are selected, most selections end at the first level: candidates with
    // the digit of the cut need no further digits if all of them fit. With shared_pre the selection
    // must be exact.
    const int64_t more = args.shared_pre ? 0 : rows.capacity / 4 + 256;
    listed_capacity = rows.capacity == 0 ? 0 : rows.capacity + more;

    barriers = memory.take<GridBarrier>(kDecodeBarriers);
    histogram = memory.take<uint32_t>(all * kLevels * kDigits);
    set_bytes = static_cast<int64_t>(kDecodeBarriers * sizeof(GridBarrier) + 255) / 256 * 256 +
        static_cast<int64_t>(all * kLevels * kDigits * sizeof(uint32_t));
    listed = memory.take<uint32_t>(all);
    unfinished = memory.take<uint32_t>(kLevels);
    passed = memory.take<uint32_t>(all);
    rows.counts = memory.take<int32_t>(rows.segments);
    state = memory.take<SelectState>(all * kLevels);
    ties = memory.take<uint32_t>(all * chunks);
    scores = memory.take<uint32_t>(args.batches * numbers);
    list = memory.take<uint64_t>(all * listed_capacity);
    live = memory.take<uint64_t>(rows.segments * listed_capacity);
    boxes = memory.take<float>(all * listed_capacity * args.box_values());
    labels = memory.take<int32_t>(all * listed_capacity);
    nms = rows.nms(args);
    bytes = memory.bytes();
  }
};

struct SelectShared {
  uint32_t histogram[kDigits], sums[32];
  uint32_t digit, before, count, total;  // of the cut: see find_cut()
  uint32_t first;  // place in the list of the block's first candidate
};

struct SelectChunk {
  int64_t selection;  // b * selections + s
  int64_t sample;
  int64_t index;  // of the chunk
  int64_t begin, end;  // candidates

  __device__ SelectChunk(const DecodeNmsArgs& args, const DecodeWork& work, int64_t task)
      : selection(task / work.chunks),
        sample(selection / work.selections),
        index(task - selection * work.chunks) {
    const NumberRange range =
        selection_range(args, static_cast<int>(selection - sample * work.selections));
    begin = min(range.begin + index * work.chunk, range.end);
    end = min(begin + work.chunk, range.end);
  }
};

__device__ __forceinline__ uint32_t digit_of(uint32_t score, int level) {
  return score >> (kDigitBits * (kLevels - 1 - level)) & (kDigits - 1);
}
// The digits of all earlier levels.
__device__ __forceinline__ uint32_t prefix_of(uint32_t score, int level) {
  return level == 0 ? 0 : score >> (kDigitBits * (kLevels - level));
}

__device__ __forceinline__ void clear_histogram(SelectShared& shared) {
  for (int d = threadIdx.x; d < kDigits; d += blockDim.x) shared.histogram[d] = 0;
  __syncthreads();
}
__device__ __forceinline__ void add_histogram(const SelectShared& shared, uint32_t* histogram) {
  __syncthreads();
  for (int d = threadIdx.x; d < kDigits; d += blockDim.x) {
    if (shared.histogram[d]) atomicAdd(&histogram[d], shared.histogram[d]);
  }
}

// Called by one block before anything is counted.
__device__ __forceinline__ void clear_counters(const DecodeWork& work, int64_t all) {
  for (int64_t i = threadIdx.x; i < all; i += blockDim.x) work.listed[i] = 0;
  for (int64_t i = threadIdx.x; i < work.rows.segments; i += blockDim.x) work.rows.counts[i] = 0;
  if (threadIdx.x < kLevels) work.unfinished[threadIdx.x] = 0;
}

// Writes the score codes of a chunk and adds its first digits to the histogram of the selection.
template <class T>
inline __device__ void score_chunk(const DecodeNmsArgs& args, const DecodeWork& work,
                                   const SelectChunk& chunk, SelectShared& shared) {
  clear_histogram(shared);
  const DecodeSample<T> sample{args, chunk.sample, work.least_logit};
  uint32_t* const scores = work.scores + chunk.sample * work.numbers;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += blockDim.x) {
    const uint32_t score = sample.score(work.pairs, i);
    scores[i] = score;
    if (score > 0) atomicAdd(&shared.histogram[digit_of(score, 0)], 1);
  }
  add_histogram(shared, work.histogram + chunk.selection * kLevels * kDigits);
}

// The digit at which the candidates, counted from the highest digit down, reach `needed`; how many
// have higher digits (`before`), how many this one (`count`), how many any (`total`).
inline __device__ void find_cut(const uint32_t* histogram, uint32_t needed, SelectShared& shared) {
  constexpr int kMostEach = kDigits / kDecodeThreads;
  const int each = kDigits / static_cast<int>(blockDim.x);
  const int highest = kDigits - 1 - static_cast<int>(threadIdx.x) * each;
  uint32_t counts[kMostEach] = {}, sum = 0;
#pragma unroll
  for (int k = 0; k < kMostEach; ++k) {
    if (k < each) counts[k] = histogram[highest - k] + 1;
    sum += counts[k];
  }
  uint32_t total;
  uint32_t before = block_prefix(sum, shared.sums, &total);
  if (threadIdx.x == 0) {  // the result if none are needed, or more than there are
    shared.digit = needed == 0 ? kDigits : 0;
    shared.before = needed == 0 ? 0 : total - (histogram[0] + 1);
    shared.count = needed == 0 ? 0 : histogram[0] + 1;
    shared.total = total;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kMostEach; ++k) {
    if (before < needed && needed <= before + counts[k]) {
      shared.digit = highest - k;
      shared.before = before;
      shared.count = counts[k];
    }
    before += counts[k];
  }
  __syncthreads();
}

// Puts the candidates for which takes(score) holds into the list.
template <class Takes>
inline __device__ void list_chunk(const DecodeWork& work, const SelectChunk& chunk,
                                  SelectShared& shared, const Takes& takes) {
  const uint32_t* const scores = work.scores + chunk.sample * work.numbers;
  uint32_t count = 0;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += blockDim.x) {
    count += takes(scores[i]);
  }
  uint32_t total;
  uint32_t at = block_prefix(count, shared.sums, &total);
  if (total == 0) return;
  if (threadIdx.x == 0) shared.first = atomicAdd(&work.listed[chunk.selection], total);
  __syncthreads();
  at += shared.first;
  uint64_t* const list = work.list + chunk.selection * work.listed_capacity;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += blockDim.x) {
    const uint32_t score = scores[i];
    if (takes(score)) list[at++] = candidate_key(score, i);
  }
}

// Counts the candidates of a chunk that have exactly the score of the cut, when not all of those
// fit.
inline __device__ void count_ties(const DecodeWork& work, const SelectChunk& chunk,
                                  SelectShared& shared, uint32_t tied) {
  const uint32_t* const scores = work.scores + chunk.sample * work.numbers;
  uint32_t count = 0, total;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += blockDim.x) {
    count += scores[i] == tied;
  }
  block_prefix(count, shared.sums, &total);
  if (threadIdx.x == 0) work.ties[chunk.selection * work.chunks + chunk.index] = total;
}

// Level 0, 1 or 2: lists the candidates above the cut and counts those at the cut by their next
// digit. If all at the cut fit, too, they are listed and the selection is done.
inline __device__ void refine_chunk(const DecodeWork& work, const SelectChunk& chunk, int level,
                                    SelectShared& shared, int64_t all) {
  SelectState state{0, 0, 0};
  if (level > 0) state = work.state[(level - 1) * all + chunk.selection];
  SelectState* const next = &work.state[level * all + chunk.selection];
  const bool writes = chunk.index == 0 && threadIdx.x == 0;
  if (state.done) {
    if (writes) *next = state;
    return;
  }
  uint32_t* const histogram = work.histogram + (chunk.selection * kLevels + level) * kDigits;
  const auto needed = static_cast<uint32_t>(work.rows.capacity) - state.above;
  find_cut(histogram, needed, shared);
  const uint32_t digit = shared.digit, before = shared.before, count = shared.count;
  if (level == 0 && writes) work.passed[chunk.selection] = shared.total;
  const bool fits = state.above + before + count <= work.listed_capacity;
  const uint32_t prefix = state.prefix;
  if (writes) {
    *next = {prefix << kDigitBits | digit, state.above + before, fits};
    if (!fits) atomicAdd(&work.unfinished[level], 1);
  }
  __syncthreads();
  list_chunk(work, chunk, shared, [=](uint32_t score) {
    const uint32_t own = digit_of(score, level);
    return score > 0 && prefix_of(score, level) == prefix && (fits ? own >= digit : own > digit);
  });
  if (fits) return;
  __syncthreads();
  if (level + 1 == kLevels) return count_ties(work, chunk, shared, prefix << kDigitBits | digit);
  clear_histogram(shared);
  const uint32_t* const scores = work.scores + chunk.sample * work.numbers;
  for (int64_t i = chunk.begin + threadIdx.x; i < chunk.end; i += blockDim.x) {
    const uint32_t score = scores[i];
    if (score > 0 && prefix_of(score, level + 1) == (prefix << kDigitBits | digit)) {
      atomicAdd(&shared.histogram[digit_of(score, level + 1)], 1);
    }
  }
  add_histogram(shared, histogram + kDigits);
}

// Lists the candidates at the last cut that fit, lowest numbers first.
inline __device__ void list_ties(const DecodeWork& work, const SelectChunk& chunk,
                                 SelectShared& shared, int64_t all) {
  const SelectState state = work.state[(kLevels - 1) * all + chunk.selection];
  if (state.done) return;
  const auto needed = static_cast<uint32_t>(work.rows.capacity) - state.above;
  const uint32_t* const ties = work.ties + chunk.selection * work.chunks;
  uint32_t count = 0, before;
  for (int64_t c = threadIdx.x; c < chunk.index; c += blockDim.x) count += ties[c];
  block_prefix(count, shared.sums, &before);
  // Ties are listed last, so their places follow from state.above.
  uint64_t* const list = work.list + chunk.selection * work.listed_capacity + state.above;
  const uint32_t* const scores = work.scores + chunk.sample * work.numbers;
  for (int64_t row = chunk.begin; row < chunk.end && before < needed; row += blockDim.x) {
    const int64_t i = row + threadIdx.x;
    const bool tie = i < chunk.end && scores[i] == state.prefix;
    uint32_t total;
    const uint32_t at = before + block_prefix<uint32_t>(tie, shared.sums, &total);
    if (tie && at < needed) list[at] = candidate_key(state.prefix, i);
    before += total;
  }
  if (chunk.index == 0 && threadIdx.x == 0) {
    work.listed[chunk.selection] = static_cast<uint32_t>(work.rows.capacity);
  }
}

// From the selected candidates to ordered rows of boxes: decoding, then sorting by counting the
// keys above each, which needs no passes and costs no more than NMS does.

inline constexpr int kRankWarps = 8;
inline constexpr int kRankEach =
    4;  // candidates per warp, which compares each key with all of them
inline constexpr int kRankTile = kRankWarps * kRankEach;

__device__ __forceinline__ int64_t listed_of(const DecodeWork& work, int64_t selection) {
  return min(int64_t{work.listed[selection]}, work.listed_capacity);
}

// Decodes candidate i of a list. With shared_pre it also writes the key of its pair with each
// class.
template <class T>
inline __device__ void decode_listed(const DecodeNmsArgs& args, const DecodeWork& work,
                                     int64_t selection, int64_t i) {
  const int64_t b = selection / work.selections;
  const DecodeSample<T> sample{args, b, work.least_logit};
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
  const DecodeHead& head = args.head[c.head];
  const int groups = args.groups();
  for (int g = 0; g < groups; ++g) {
    const int cls = g - head.first_class;
    uint32_t score = 0;
    if (live && cls >= 0 && cls < head.classes) score = sample.class_score(head, c.box, cls);
    work.live[(b * groups + g) * work.listed_capacity + i] =
        score > 0 ? candidate_key(score, pair_number(head, cls, c.box)) : 0;
  }
}

// Moves four candidates of a segment to their places, ready for NMS. Called by a warp.
inline __device__ void rank_listed(const DecodeNmsArgs& args, const DecodeWork& work,
                                   int64_t segment, int64_t first) {
  const int lane = threadIdx.x % 32, groups = args.groups();
  const int64_t selection = args.shared_pre ? segment / groups : segment;
  const int64_t listed = listed_of(work, selection), capacity = work.rows.capacity;
  if (first >= listed) return;
  const uint64_t* const live = work.live + segment * work.listed_capacity;
  const uint64_t* const list = work.list + selection * work.listed_capacity;
  // A listed candidate that is not selected is below all that are, so it changes no rank of theirs.
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
  uint64_t key = 0;  // of the candidate that this lane handles
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

// Item i of the result: a kept box, an unused row, or the counts of a sample.
__device__ __forceinline__ void write_item(const DecodeNmsArgs& args, const DecodeWork& work,
                                           int64_t item) {
  const DecodeRows& rows = work.rows;
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
  args.overflow[b] = work.chunks == 0 ? 0 : overflow_of(args, work.passed + b * work.selections);
}

}  // namespace torchvox
