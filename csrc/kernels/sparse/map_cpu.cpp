// SPDX-License-Identifier: Apache-2.0
//
// Maps of sparse convolutions on the CPU: tasks over rows; the counts of the trees are serial.
#include "csrc/kernels/sparse/map.h"

namespace torchvox {
namespace {

constexpr int64_t kRowsPerTask = 512;

// Running sums of the bits of words; returns the total.
uint32_t count_bits(const uint64_t* words, int64_t count, uint32_t* before) {
  uint32_t total = 0;
  for (int64_t i = 0; i < count; ++i) {
    before[i] = total;
    total += static_cast<uint32_t>(bit_count(words[i]));
  }
  return total;
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
  const int64_t valid = args.valid();
  const int planes = args.axes[0].kernel;
  RankTree trees[2] = {work.in, work.out};
  const int count = args.submanifold ? 1 : 2;
  std::fill_n(work.row_of, args.rows, uint32_t{0});
  std::fill_n(args.counts, (args.batches + 1) * kCountColumns, 0);
  if (!args.submanifold) {
    fill(parallel_for, args.neighbors, args.volume() * args.out_rows, -1);
    fill(parallel_for, args.out_indices, args.out_rows, SparseIndex{-1, -1, -1, -1});
  }
  for (int t = 0; t < count; ++t) std::fill_n(trees[t].segments, trees[t].words(), uint64_t{0});

  const auto enter = [&](bool into_leaves) {
    for_each_index(parallel_for, valid, kRowsPerTask, [&](int64_t row) {
      for (int kz = 0; kz < (args.submanifold ? 1 : planes); ++kz) {
        enter_row(args, work, row, kz, into_leaves);
      }
    });
  };
  enter(false);
  int64_t leaves[2] = {};
  for (int t = 0; t < count; ++t) {
    leaves[t] = count_bits(trees[t].segments, trees[t].words(), trees[t].leaves_before);
    std::fill_n(trees[t].leaves, leaves[t], uint64_t{0});
  }
  enter(true);
  for (int t = 0; t < count; ++t) {
    trees[t].cells_before[leaves[t]] =
        count_bits(trees[t].leaves, leaves[t], trees[t].cells_before);
  }
  for_each_index(parallel_for, valid, kRowsPerTask,
                 [&](int64_t row) { choose_row(args, work, row); });
  for_each_range(parallel_for, args.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    RowCounts sum;  // of rows of one sample
    for (int kz = 0; kz < planes; ++kz) {
      for (int64_t row = begin; row < end; ++row) {
        const RowCounts counts = write_row(args, work, valid, row, kz);
        if (counts.sample != sum.sample) {
          add_counts(args, sum);
          sum = {counts.sample};
        }
        sum.pairs += counts.pairs, sum.skipped += counts.skipped;
      }
    }
    add_counts(args, sum);
  });
  for (int64_t b = -1; b < args.batches; ++b) write_row_counts(args, work, b);
}

}  // namespace torchvox
