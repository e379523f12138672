// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/slot_sum.cuh"
#include "csrc/kernels/grouping/words.cuh"

namespace torchvox {
namespace {

// Channel-last rows in words of 16 bytes, a thread a word: all channels of a slot are read at once,
// a list ahead of the additions.
template <class T>
__global__ void __launch_bounds__(kSumThreads)
    word_rows_kernel(const __grid_constant__ SlotSumArgs args) {
  using Sum = compute_t<T>;
  constexpr int kWidth = Word<T>::kWidth;
  constexpr int kAhead = sizeof(T) == 2 ? 4 : kSumAhead;
  let_next_begin();
  const SlotLists& lists = args.lists;
  const int64_t words = args.channels / kWidth;
  const int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= lists.rows) return;
  const auto fan = static_cast<uint32_t>(args.fan);
  for (int64_t cloud = blockIdx.y; cloud < lists.clouds; cloud += gridDim.y) {
    const int32_t* const range = lists.offsets + cloud * (lists.rows + 1) + row;
    const int32_t begin = range[0], end = range[1];
    if (end - begin > kSumChunk) continue;
    const int32_t* const order = lists.order + cloud * lists.slots;
    const auto* const grad =
        static_cast<const Word<T>*>(args.grad) + cloud * (lists.slots / fan) * words;
    auto* const out = static_cast<Word<T>*>(args.out) + (cloud * lists.rows + row) * words;
    for (int64_t word = threadIdx.x; word < words; word += blockDim.x) {
      Sum sum[kWidth] = {};
      for (int32_t at = begin; at < end; at += kAhead) {
        Word<T> value[kAhead];
        Sum weight[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (at + k >= end) break;
          const auto slot = static_cast<uint32_t>(order[at + k]);
          value[k] = load_once(grad + (fan == 1 ? slot : slot / fan) * words + word);
          if (args.weight) {
            weight[k] =
                load_weight<Sum>(args.weight, args.weight_dtype, cloud * lists.slots + slot);
          }
        }
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          if (at + k >= end) break;
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            const Sum wide = widen(value[k].item(c));
            sum[c] += args.weight ? weight[k] * wide : wide;
          }
        }
      }
      Word<T> result;
#pragma unroll
      for (int c = 0; c < kWidth; ++c) result.set(c, narrow<T>(quiet(sum[c])));
      store_once(out + word, result);
    }
  }
}

template <class T>
cudaError_t launch_type(const SlotSumArgs& args, void* workspace, const CudaContext& context) {
  const SlotLists& lists = args.lists;
  const bool in_words = !args.channels_first && args.channels % Word<T>::kWidth == 0 &&
      is_aligned(args.grad) && is_aligned(args.out);
  if (in_words) {
    const dim3 block = block_of(args.channels / Word<T>::kWidth);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(lists.rows, block.y)),
                    grid_y(lists.clouds));
    word_rows_kernel<T><<<grid, block, 0, context.stream>>>(args);
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
  } else {
    TORCHVOX_CUDA_CHECK(launch_short_rows<SlotGradient<T>>(args, args.channels_first, context));
  }
  return launch_long_rows<SlotGradient<T>>(args, workspace, context);
}

}  // namespace

int64_t workspace_bytes_cuda(const SlotSumArgs& args) {
  return with_point_type(args.dtype, [&](auto type) {
    return partial_sums_bytes<SlotGradient<decltype(type)>>(args);
  });
}

cudaError_t launch(const SlotSumArgs& args, void* workspace, const CudaContext& context) {
  if (args.lists.clouds * args.lists.rows * args.channels == 0) return cudaSuccess;
  return with_point_type(
      args.dtype, [&](auto type) { return launch_type<decltype(type)>(args, workspace, context); });
}

}  // namespace torchvox
