// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbours/query_and_group_common.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kMostSlots = 128;  // of a block
constexpr int kElements = 4096;  // of a block, roughly

// A block has some slots, whose sources it looks up once; its threads walk over their elements, so
// that writes are consecutive and reads within a row too.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    group_kernel(const __grid_constant__ QueryAndGroupArgs args, int slots_per_block) {
  __shared__ GroupSlot from[kMostSlots];
  const int64_t all = args.clouds * args.queries * args.slots;
  const int64_t first = int64_t{blockIdx.x} * slots_per_block;
  const int slots = static_cast<int>(min(int64_t{slots_per_block}, all - first));
  for (int i = threadIdx.x; i < slots; i += kThreads) from[i] = GroupSlot::of(args, first + i);
  __syncthreads();
  const int columns = static_cast<int>(args.columns());
  const int64_t base = first * columns;
  int slot = static_cast<int>(threadIdx.x) / columns;
  int column = static_cast<int>(threadIdx.x) - slot * columns;
  const int slot_step = kThreads / columns, column_step = kThreads - slot_step * columns;
  int64_t at = base + threadIdx.x;
  while (slot < slots) {
    group_element<Word>(args, from[slot], column, at);
    at += kThreads;
    slot += slot_step;
    column += column_step;
    if (column >= columns) {
      column -= columns;
      ++slot;
    }
  }
}

// One thread a coordinate of a query.
template <class C>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const __grid_constant__ QueryAndGroupBackwardArgs args) {
  for (int64_t i = global_thread(); i < args.rows * args.dims; i += global_stride()) {
    group_gradient<C>(args, i / args.dims, i % args.dims);
  }
}

}  // namespace

cudaError_t launch(const QueryAndGroupArgs& args, void*, const CudaContext& context) {
  const int64_t slots = args.clouds * args.queries * args.slots, columns = args.columns();
  if (slots * columns == 0) return cudaSuccess;
  const int64_t wanted = kElements / columns;
  const int per_block =
      static_cast<int>(wanted < 1 ? 1 : (wanted < kMostSlots ? wanted : kMostSlots));
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(slots, per_block));
  with_word_of(args.grouped_dtype, [&](auto word) {
    group_kernel<decltype(word)><<<blocks, kThreads, 0, context.stream>>>(args, per_block);
  });
  return cudaGetLastError();
}

cudaError_t launch(const QueryAndGroupBackwardArgs& args, void*, const CudaContext& context) {
  const int64_t count = args.rows * args.dims;
  if (count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(count, kThreads, context.target);
  with_compute_type(args.dtype, [&](auto zero) {
    gradient_kernel<decltype(zero)><<<blocks, kThreads, 0, context.stream>>>(args);
  });
  return cudaGetLastError();
}

}  // namespace torchvox
