// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/gather_points.h"
#include "csrc/kernels/grouping/row_blocks.cuh"

namespace torchvox {
namespace {

constexpr int kAhead = 4;  // samples of a thread under way at once
constexpr int kPlanes = 8;  // channels for which a thread reads its index once

// Channel-last: a thread has one word of a few rows. The output is written once and streams past
// the features, which stay in the cache.
template <class Word>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ GatherPointsArgs args, int64_t words) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.y * kAhead + threadIdx.y;
  for (int64_t cloud = blockIdx.y; cloud < args.batches; cloud += gridDim.y) {
    const Word* const features =
        static_cast<const Word*>(args.features) + cloud * args.points * words;
    const int64_t row = cloud * args.samples;
    int64_t from[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t sample = first + k * blockDim.y;
      const int64_t n = sample < args.samples ? args.idx[row + sample] : -1;
      from[k] = n >= 0 && n < args.points ? n * words : -1;
    }
    for (int64_t word = threadIdx.x; word < words; word += blockDim.x) {
      Word value[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) value[k] = from[k] < 0 ? Word{} : features[from[k] + word];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int64_t sample = first + k * blockDim.y;
        if (sample >= args.samples) break;
        Word* const out = static_cast<Word*>(args.out) + (row + sample) * words + word;
        __stcs(out, value[k]);
      }
    }
  }
}

// Channels first: a thread has one sample of a few planes, in which its neighbours read and write
// beside it.
template <class Word>
__global__ void __launch_bounds__(kRowThreads)
    planes_kernel(const __grid_constant__ GatherPointsArgs args, int64_t groups) {
  const int64_t sample = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (sample >= args.samples) return;
  for (int64_t y = blockIdx.y; y < args.batches * groups; y += gridDim.y) {
    const int64_t cloud = y / groups, first = (y - cloud * groups) * kPlanes;
    const int64_t n = args.idx[cloud * args.samples + sample];
    const bool inside = n >= 0 && n < args.points;
    const int64_t plane = cloud * args.channels + first;
    const Word* const features = static_cast<const Word*>(args.features) + plane * args.points + n;
    Word* const out = static_cast<Word*>(args.out) + plane * args.samples + sample;
    Word value[kPlanes];
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) {
      value[c] = inside && first + c < args.channels ? features[c * args.points] : Word{};
    }
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) {
      if (first + c < args.channels) __stcs(out + c * args.samples, value[c]);
    }
  }
}

// Bytes do not care what they mean: elements are moved as words. A channel-last row moves in the
// widest word that divides it and that both buffers are aligned to; channels first, one element.
int64_t word_bytes(const GatherPointsArgs& args) {
  if (args.channels_first) return args.element_bytes;
  const auto misaligned = reinterpret_cast<uintptr_t>(args.features) |
      reinterpret_cast<uintptr_t>(args.out) |
      static_cast<uintptr_t>(args.channels * args.element_bytes);
  int64_t word = args.element_bytes;
  while (word < 16 && misaligned % (2 * word) == 0) word *= 2;
  return word;
}

template <class Word>
void launch_words(const GatherPointsArgs& args, int64_t words, cudaStream_t stream) {
  constexpr bool kElement = sizeof(Word) <= 8;  // planes are read by element
  if (kElement && args.channels_first) {
    const int64_t groups = ceil_div<int64_t>(args.channels, kPlanes);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.samples, kRowThreads)),
                    grid_y(args.batches * groups));
    if constexpr (kElement) planes_kernel<Word><<<grid, kRowThreads, 0, stream>>>(args, groups);
  } else {
    const dim3 block = block_of(words);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.samples, block.y * kAhead)),
                    grid_y(args.batches));
    rows_kernel<Word><<<grid, block, 0, stream>>>(args, words);
  }
}

}  // namespace

cudaError_t launch(const GatherPointsArgs& args, void*, const CudaContext& context) {
  if (args.batches * args.samples * args.channels == 0) return cudaSuccess;
  const int64_t bytes = word_bytes(args);
  const int64_t words = args.channels * args.element_bytes / bytes;
  switch (bytes) {
    case 2: launch_words<unsigned short>(args, words, context.stream); break;
    case 8: launch_words<uint2>(args, words, context.stream); break;
    case 16: launch_words<uint4>(args, words, context.stream); break;
    default: launch_words<unsigned>(args, words, context.stream); break;
  }
  return cudaGetLastError();
}

}  // namespace torchvox
