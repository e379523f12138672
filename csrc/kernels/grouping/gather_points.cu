// SPDX-License-Identifier: Apache-2.0
//
// Rows of features by index on the GPU: each element is written once, bypassing the cache.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/gather_points.h"

namespace torchvox {
namespace {

constexpr int kAhead = 4;  // samples of a thread in flight at once
constexpr int kPlanes = 8;  // channels per thread, for which it reads its index once

struct GatherSizes {
  int64_t clouds, points, samples, channels;
  int64_t words;  // per row
};

template <class Index>
__device__ __forceinline__ bool is_inside(Index n, int64_t points) {
  return n >= 0 && n < points;
}

// Channel-last. One thread per word of kAhead rows: reads the indices and the words, writes them.
// The output bypasses the cache, so that the features stay in it.
template <class Word, class Index>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const Word* __restrict__ all_features, const Index* __restrict__ all_idx,
                Word* __restrict__ all_out, const __grid_constant__ GatherSizes sizes) {
  const int64_t first = int64_t{blockIdx.x} * blockDim.y * kAhead + threadIdx.y;
  for (int64_t cloud = blockIdx.y; cloud < sizes.clouds; cloud += gridDim.y) {
    const Word* const features = all_features + cloud * sizes.points * sizes.words;
    const Index* const idx = all_idx + cloud * sizes.samples;
    Word* const out = all_out + cloud * sizes.samples * sizes.words;
    int64_t from[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t sample = first + k * blockDim.y;
      const Index n = sample < sizes.samples ? __ldg(idx + sample) : Index{-1};
      from[k] = is_inside(n, sizes.points) ? n * sizes.words : -1;
    }
    for (int64_t word = threadIdx.x; word < sizes.words; word += blockDim.x) {
      Word value[kAhead];
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        value[k] = from[k] >= 0 ? __ldg(features + from[k] + word) : Word{};
      }
#pragma unroll
      for (int k = 0; k < kAhead; ++k) {
        const int64_t sample = first + k * blockDim.y;
        if (sample < sizes.samples) __stcs(out + sample * sizes.words + word, value[k]);
      }
    }
  }
}

// Channels first. One thread per sample and kPlanes planes: reads its index once, and an element of
// each plane, where its neighbors read and write beside it.
template <class Word, class Index>
__global__ void __launch_bounds__(kRowThreads)
    planes_kernel(const Word* __restrict__ all_features, const Index* __restrict__ all_idx,
                  Word* __restrict__ all_out, const __grid_constant__ GatherSizes sizes) {
  const int64_t sample = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (sample >= sizes.samples) return;
  const int64_t groups = ceil_div<int64_t>(sizes.channels, kPlanes);
  for (int64_t y = blockIdx.y; y < sizes.clouds * groups; y += gridDim.y) {
    const int64_t cloud = y / groups, first = (y - cloud * groups) * kPlanes;
    const Index n = __ldg(all_idx + cloud * sizes.samples + sample);
    const bool inside = is_inside(n, sizes.points);
    const int64_t plane = cloud * sizes.channels + first;
    const Word* const features = all_features + plane * sizes.points + (inside ? n : 0);
    Word* const out = all_out + plane * sizes.samples + sample;
    Word value[kPlanes];
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) {
      value[c] = inside && first + c < sizes.channels ? __ldg(features + c * sizes.points) : Word{};
    }
#pragma unroll
    for (int c = 0; c < kPlanes; ++c) {
      if (first + c < sizes.channels) __stcs(out + c * sizes.samples, value[c]);
    }
  }
}

// Elements are copied as words, whatever their type: channel-last in the widest word that divides a
// row and to which both buffers are aligned; channels first one element at a time.
int64_t word_bytes(const GatherPointsArgs& args) {
  if (args.channels_first) return args.element_bytes;
  const auto misaligned = reinterpret_cast<uintptr_t>(args.features) |
      reinterpret_cast<uintptr_t>(args.out) |
      static_cast<uintptr_t>(args.channels * args.element_bytes);
  int64_t word = args.element_bytes;
  while (word < 16 && misaligned % (2 * word) == 0) word *= 2;
  return word;
}

template <class Word, class Index>
cudaError_t launch_index(const GatherPointsArgs& args, const GatherSizes& sizes,
                         cudaStream_t stream) {
  const auto* const features = static_cast<const Word*>(args.features);
  const auto* const idx = static_cast<const Index*>(args.idx.data);
  auto* const out = static_cast<Word*>(args.out);
  if constexpr (sizeof(Word) <= 8) {  // planes are moved by element
    if (args.channels_first) {
      const dim3 grid(grid_x(ceil_div<int64_t>(sizes.samples, kRowThreads)),
                      grid_y(sizes.clouds * ceil_div<int64_t>(sizes.channels, kPlanes)));
      return launch_blocks(planes_kernel<Word, Index>, grid, kRowThreads, stream, features, idx,
                           out, sizes);
    }
  }
  const dim3 block = block_of(sizes.words);
  const dim3 grid(grid_x(ceil_div<int64_t>(sizes.samples, block.y * kAhead)), grid_y(sizes.clouds));
  return launch_blocks(rows_kernel<Word, Index>, grid, block, stream, features, idx, out, sizes);
}

template <class Word>
cudaError_t launch_words(const GatherPointsArgs& args, int64_t bytes, cudaStream_t stream) {
  const GatherSizes sizes{args.batches, args.points, args.samples, args.channels,
                          args.channels * args.element_bytes / bytes};
  return args.idx.wide ? launch_index<Word, int64_t>(args, sizes, stream)
                       : launch_index<Word, int32_t>(args, sizes, stream);
}

}  // namespace

cudaError_t launch(const GatherPointsArgs& args, void*, const CudaContext& context) {
  if (args.batches * args.samples * args.channels == 0) return cudaSuccess;
  const int64_t bytes = word_bytes(args);
  switch (bytes) {
    case 2: return launch_words<unsigned short>(args, bytes, context.stream);
    case 8: return launch_words<uint2>(args, bytes, context.stream);
    case 16: return launch_words<uint4>(args, bytes, context.stream);
    default: return launch_words<unsigned>(args, bytes, context.stream);
  }
}

}  // namespace torchvox
