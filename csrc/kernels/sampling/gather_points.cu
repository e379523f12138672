// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/sampling/gather_points_common.h"

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

__global__ void __launch_bounds__(kThreads) rows_kernel(GatherRowsArgs args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) gather_row(args, i);
}

// One thread an element of the gradient: the lanes of a warp share their samples in the
// channel-last layout and read whole rows.
template <class T>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(GatherPointsBackwardArgs args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) gather_gradient<T>(args, i);
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

cudaError_t launch(const GatherRowsArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.batches * args.samples;
  if (count == 0) return cudaSuccess;
  rows_kernel<<<blocks_for(count, kThreads, context.target), kThreads, 0, context.stream>>>(args,
                                                                                            count);
  return cudaGetLastError();
}

cudaError_t launch(const GatherPointsBackwardArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.batches * args.points * args.channels;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kThreads, context.target);
  with_point_type(args.dtype, [&](auto type) {
    gradient_kernel<decltype(type)><<<blocks, kThreads, 0, context.stream>>>(args, count);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
