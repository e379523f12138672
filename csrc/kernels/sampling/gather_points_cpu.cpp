// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/gather_points_common.h"

namespace torchvox {
namespace {

constexpr int64_t kElementsPerTask = 16384;

}  // namespace

int64_t workspace_bytes(const GatherPointsArgs&, const Target&) { return 0; }
int64_t workspace_bytes(const GatherRowsArgs&, const Target&) { return 0; }
int64_t workspace_bytes(const GatherPointsBackwardArgs&, const Target&) { return 0; }

void run_cpu(const GatherPointsArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t word_bytes = gather_word_bytes(args);
  const int64_t words = args.channels * args.element_bytes / word_bytes;
  with_word(word_bytes, [&](auto word) {
    for_each_index(parallel_for, args.batches * args.samples * words, kElementsPerTask,
                   [&](int64_t i) { gather_word<decltype(word)>(args, words, i); });
  });
}

void run_cpu(const GatherRowsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.batches * args.samples, kElementsPerTask,
                 [&](int64_t i) { gather_row(args, i); });
}

void run_cpu(const GatherPointsBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    for_each_index(parallel_for, args.batches * args.points * args.channels, kElementsPerTask,
                   [&](int64_t i) { gather_gradient<decltype(type)>(args, i); });
  });
}

}  // namespace torchvox
