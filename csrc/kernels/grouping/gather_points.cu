// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/gather_points_common.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread a word of the output: writes are consecutive, reads too within a channel-last row.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(GatherPointsArgs args, int64_t words, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) {
    gather_word<Word>(args, words, i);
  }
}

}  // namespace

cudaError_t launch(const GatherPointsArgs& args, void*, const CudaContext& context) {
  const int64_t word_bytes = gather_word_bytes(args);
  const int64_t words = args.channels * args.element_bytes / word_bytes;
  const int64_t count = args.batches * args.samples * words;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kThreads, context.target);
  with_word(word_bytes, [&](auto word) {
    gather_kernel<decltype(word)><<<blocks, kThreads, 0, context.stream>>>(args, words, count);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
