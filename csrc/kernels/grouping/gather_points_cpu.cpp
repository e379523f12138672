// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/gather_points_common.h"

namespace torchvox {
namespace {

constexpr int64_t kElementsPerTask = 16384;

}  // namespace

int64_t workspace_bytes(const GatherPointsArgs&, const Target&) { return 0; }

void run_cpu(const GatherPointsArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t word_bytes = gather_word_bytes(args);
  const int64_t words = args.channels * args.element_bytes / word_bytes;
  with_word(word_bytes, [&](auto word) {
    for_each_index(parallel_for, args.batches * args.samples * words, kElementsPerTask,
                   [&](int64_t i) { gather_word<decltype(word)>(args, words, i); });
  });
}

}  // namespace torchvox
