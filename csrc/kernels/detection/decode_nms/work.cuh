// SPDX-License-Identifier: Apache-2.0
//
// Workspace and launch shape of the kernels of decode + top-k + NMS.
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

}  // namespace torchvox
