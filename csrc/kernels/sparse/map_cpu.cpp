// SPDX-License-Identifier: Apache-2.0
//
// Maps of sparse convolutions on the CPU: tasks over rows; the counts of the trees are serial.
#include "csrc/kernels/sparse/map.h"

namespace torchvox {
namespace {

constexpr int64_t kRowsPerTask = 512;

// Running sums of the bits of words; the total comes last.
void count_bits(const uint64_t* words, int64_t count, uint32_t* before) {
  before[0] = 0;
  for (int64_t i = 0; i < count; ++i) {
    before[i + 1] = before[i] + static_cast<uint32_t>(bit_count(words[i]));
  }
}

template <class T>
void fill(const ParallelFor& parallel_for, T* to, int64_t count, T value) {
  for_each_range(parallel_for, count, 1 << 14,
                 [&](int64_t begin, int64_t end) { std::fill(to + begin, to + end, value); });
}

}  // namespace

int64_t workspace_bytes_cpu(const SparseMapArgs& args) { return carved_bytes<SparseMapWork>(args); }

void run_cpu(const SparseMapArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<SparseMapWork>(memory, args);
  const RankTree& out = work.out;
  const int64_t valid = args.valid();
  fill(parallel_for, work.table.lines, int64_t{work.table.places}, CellTable::kNoLine);
  fill(parallel_for, work.table.rows, work.table.size(), CellTable::kNoRow);
  std::fill_n(work.later, args.rows, uint8_t{0});
  std::fill_n(args.counts, (args.batches + 1) * kCountColumns, 0);
  if (!args.submanifold) {
    fill(parallel_for, args.neighbors, args.volume() * args.out_rows, -1);
    fill(parallel_for, args.inverse, args.volume() * args.rows, -1);
    fill(parallel_for, args.out_indices, args.out_rows, SparseIndex{-1, -1, -1, -1});
    fill(parallel_for, out.segments, out.words(), uint64_t{0});
    fill(parallel_for, out.leaves, out.most_leaves, uint64_t{0});
  }
  const auto enter = [&](bool first) {
    for_each_index(parallel_for, valid, kRowsPerTask,
                   [&](int64_t row) { enter_row(args, work, row, 0, work.planes, first); });
  };
  enter(true);
  if (!args.submanifold) {
    if (!out.all_leaves) {
      count_bits(out.segments, out.words(), out.leaves_before);
      enter(false);
    }
    count_bits(out.leaves, out.leaf_count(), out.cells_before);
  }
  for_each_range(parallel_for, args.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    RowCounts sum;  // of rows of one sample
    const auto to = [&](int64_t row) {
      return reinterpret_cast<uint32_t*>(args.counts) + kCountColumns * row;
    };
    for (int plane = 0; plane < work.planes; ++plane) {
      for (int64_t row = begin; row < end; ++row) {
        const RowCounts counts = args.submanifold ? write_row<true>(args, work, valid, row, plane)
                                                  : write_row<false>(args, work, valid, row, plane);
        if (counts.sample != sum.sample) {
          add_counts(sum, to);
          sum = {counts.sample};
        }
        sum.active += counts.active;
        sum.pairs += counts.pairs;
        sum.skipped += counts.skipped;
      }
    }
    add_counts(sum, to);
  });
  for (int64_t b = args.submanifold ? args.batches : -1; b < args.batches; ++b) {
    write_row_counts(args, work, b);
  }
}

}  // namespace torchvox
