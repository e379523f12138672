// SPDX-License-Identifier: Apache-2.0
//
// Decode + top-k + NMS on the CPU: chunks of candidates are scored in parallel; each selection is
// then cut by nth_element, sorted and decoded; NMS; one task per sample writes the rows.
#include <algorithm>
#include <cstring>
#include <functional>

#include "csrc/kernels/detection/decode_nms/rows.h"

namespace torchvox {
namespace {

constexpr int64_t kChunk = 4096;  // candidates of a task

// Candidates that pass, packed at the front of each chunk, then of each selection.
struct HostWork {
  int64_t chunks;  // per selection
  uint64_t* keys;  // [batches, candidates]
  int64_t* chunk_count;  // [batches, selections, chunks]
  int64_t* passed;  // [batches, selections]
  DecodeRows rows;
  void* nms;

  HostWork(const DecodeNmsArgs& args, Workspace& memory)
      : chunks((most_candidates(args) + kChunk - 1) / kChunk),
        keys(memory.take<uint64_t>(args.batches * candidates_of(args, selects_pairs(args)))),
        chunk_count(memory.take<int64_t>(args.batches * selections_of(args) * chunks)),
        passed(memory.take<int64_t>(args.batches * selections_of(args))),
        rows(args, memory) {
    rows.counts = memory.take<int32_t>(rows.segments);
    nms = memory.take<char>(rows.any() ? workspace_bytes_cpu(rows.nms(args)) : 0);
  }
};

template <class T>
struct DecodeCpu {
  const DecodeNmsArgs& args;
  const HostWork& work;
  const ParallelFor& parallel_for;
  const float least = least_logit(args);

  // Fills the ordered rows.
  void find() const {
    const int64_t selections = args.batches * selections_of(args);
    for_each_index(parallel_for, selections * work.chunks, 1,
                   [&](int64_t task) { score_chunk(task / work.chunks, task % work.chunks); });
    for_each_index(parallel_for, selections, 1, [&](int64_t selection) { select(selection); });
  }

  DecodeSample<T> sample(int64_t b) const { return {args, b, least}; }
  uint64_t* selected(int64_t selection) const {
    const int64_t b = selection / selections_of(args);
    const int s = static_cast<int>(selection % selections_of(args));
    return work.keys + b * candidates_of(args, selects_pairs(args)) +
        selection_range(args, s).begin;
  }

  void score_chunk(int64_t selection, int64_t chunk) const {
    const int s = static_cast<int>(selection % selections_of(args));
    const NumberRange range = selection_range(args, s);
    const int64_t begin = range.begin + chunk * kChunk;
    const int64_t end = std::min(begin + kChunk, range.end);
    const bool pairs = selects_pairs(args);
    const DecodeSample<T> scored = sample(selection / selections_of(args));
    uint64_t* const out = selected(selection) + chunk * kChunk;
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t score = scored.score(pairs, i);
      if (score > 0) out[count++] = candidate_key(score, i);
    }
    work.chunk_count[selection * work.chunks + chunk] = count;
  }

  void select(int64_t selection) const {
    uint64_t* const keys = selected(selection);
    int64_t passed = 0;
    for (int64_t c = 0; c < work.chunks; ++c) {
      const int64_t count = work.chunk_count[selection * work.chunks + c];
      if (count > 0) std::memmove(keys + passed, keys + c * kChunk, count * sizeof(uint64_t));
      passed += count;
    }
    work.passed[selection] = passed;
    const int64_t kept = std::min(passed, work.rows.capacity);
    if (kept < passed) std::nth_element(keys, keys + kept, keys + passed, std::greater<>());
    if (!args.shared_pre) return order(selection, keys, kept, false);
    // One list of boxes for the groups of all classes.
    const int64_t b = selection, groups = args.groups();
    for (int g = 0; g < groups; ++g) order(b * groups + g, keys, kept, true);
  }

  // The (class, box) pair of a selected box with the class of a group, 0 if it does not pass.
  uint64_t key_in_group(int64_t b, int group, uint64_t key) const {
    const Candidate c = candidate_of(args, false, key_number(key));
    const DecodeHead& head = args.head[c.head];
    const int cls = group - head.first_class;
    if (cls < 0 || cls >= head.classes) return 0;
    const uint32_t score = sample(b).class_score(head, c.box, cls);
    return score > 0 ? candidate_key(score, pair_number(head, cls, c.box)) : 0;
  }

  // Writes the decoded rows of a segment in order, except those that do not decode.
  void order(int64_t segment, const uint64_t* keys, int64_t count, bool by_class) const {
    const DecodeRows& rows = work.rows;
    const int64_t b = segment / args.groups();
    uint64_t* const sorted = rows.keys + segment * rows.capacity;
    int64_t size = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int group = static_cast<int>(segment % args.groups());
      const uint64_t key = by_class ? key_in_group(b, group, keys[i]) : keys[i];
      if (key > 0) sorted[size++] = key;
    }
    std::sort(sorted, sorted + size, std::greater<>());
    int64_t out = 0;
    for (int64_t i = 0; i < size; ++i) {
      const Candidate c = candidate_of(args, !args.best_class, key_number(sorted[i]));
      const int64_t row = segment * rows.capacity + out;
      if (!sample(b).decode(c, rows.boxes + row * args.box_values())) continue;
      rows.labels[row] = sample(b).label(c);
      sorted[out++] = sorted[i];
    }
    rows.counts[segment] = static_cast<int32_t>(out);
  }
};

void write_sample(const DecodeNmsArgs& args, const HostWork& work, int64_t b) {
  const DecodeRows& rows = work.rows;
  const int64_t groups = args.groups();
  for (int64_t segment = b * groups; rows.any() && segment < (b + 1) * groups; ++segment) {
    for (int64_t k = 0; k < rows.kept_counts[segment]; ++k) rows.write_kept(args, segment, k);
  }
  const int64_t used = rows.rows_used(args, b);
  for (int64_t row = used; row < args.rows(); ++row) rows.write_unused(args, b, row);
  args.count[b] = static_cast<int32_t>(used);
  args.overflow[b] = overflow_of(args, work.passed + b * selections_of(args));
}

}  // namespace

int64_t workspace_bytes_cpu(const DecodeNmsArgs& args) { return carved_bytes<HostWork>(args); }

void run_cpu(const DecodeNmsArgs& args, void* workspace, const ParallelFor& parallel_for) {
  Workspace memory(workspace);
  const HostWork work(args, memory);
  with_map_type(args.dtype,
                [&](auto type) { DecodeCpu<decltype(type)>{args, work, parallel_for}.find(); });
  if (work.rows.any()) run_cpu(work.rows.nms(args), work.nms, parallel_for);
  for_each_index(parallel_for, args.batches, 1, [&](int64_t b) { write_sample(args, work, b); });
}

}  // namespace torchvox
