// SPDX-License-Identifier: Apache-2.0
//
// anchor_loss and its gradient on the CPU: tasks of blocks of 256 anchors, whose sums are added in
// the order of kTreeValues.
#include <algorithm>

#include "csrc/kernels/targets/anchor_loss.h"

namespace torchvox {
namespace {

constexpr int64_t kBlocksPerTask = 4;

// The sum of kTreeValues values, which it overwrites.
double sum_block(double* values) {
  for (int step = kTreeValues / 2; step > 0; step /= 2) {
    for (int k = 0; k < step; ++k) values[k] += values[k + step];
  }
  return values[0];
}

// The sum of the sums of `count` blocks, which it overwrites.
double sum_all(double* sums, int64_t count) {
  for (; count > 1; count = tree_blocks(count)) {
    for (int64_t block = 0; block < tree_blocks(count); ++block) {
      double values[kTreeValues] = {};
      const int64_t begin = block * kTreeValues;
      std::copy(sums + begin, sums + std::min(begin + kTreeValues, count), values);
      sums[block] = sum_block(values);
    }
  }
  return count > 0 ? sums[0] : 0.0;
}

template <class M>
void sum_terms(const AnchorLossArgs& args, const LossScratch& scratch,
               const ParallelFor& parallel_for) {
  const int64_t anchors = args.num_anchors();
  for_each_index(parallel_for, args.batches * scratch.blocks, kBlocksPerTask, [&](int64_t i) {
    const int64_t batch = i / scratch.blocks, block = i % scratch.blocks;
    double values[kLossTerms][kTreeValues] = {};
    const int64_t begin = block * kTreeValues, end = std::min(begin + kTreeValues, anchors);
    for (int64_t anchor = begin; anchor < end; ++anchor) {
      const auto terms = anchor_terms<M>(args, AnchorPlace(args, batch, anchor));
      for (int t = 0; t < kLossTerms; ++t) values[t][anchor - begin] = terms.at[t];
    }
    for (int t = 0; t < kLossTerms; ++t) {
      scratch.sums[(batch * kLossTerms + t) * scratch.blocks + block] = sum_block(values[t]);
    }
  });
  for_each_index(parallel_for, args.batches * kLossTerms, 1, [&](int64_t i) {
    write_loss<M>(args, i, sum_all(scratch.sums + i * scratch.blocks, scratch.blocks));
  });
}

}  // namespace

void run_cpu(const AnchorLossArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto scratch = carve<LossScratch>(memory, args);
  with_point_type(args.dtype,
                  [&](auto type) { sum_terms<decltype(type)>(args, scratch, parallel_for); });
}

void run_cpu(const AnchorLossBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t anchors = args.forward.num_anchors();
  with_point_type(args.forward.dtype, [&](auto type) {
    using M = decltype(type);
    for_each_index(parallel_for, args.forward.batches * anchors, kBlocksPerTask * kTreeValues,
                   [&](int64_t i) {
                     anchor_gradient<M>(args, AnchorPlace(args.forward, i / anchors, i % anchors));
                   });
  });
}

}  // namespace torchvox
