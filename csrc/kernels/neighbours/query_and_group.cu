// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbours/query_and_group_common.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kMostSlots = 128;  // of a block
constexpr int kElements = 8192;  // of a block, roughly

// Threads that share a slot's `elements`: a power of two up to a warp.
__device__ __forceinline__ int team_of(int64_t elements) {
  int team = 1;
  while (team < 32 && team < elements) team *= 2;
  return team;
}

// A block has some slots, whose sources it looks up once. Teams of threads copy the features of
// their slots, consecutive words by consecutive lanes; then as many as there are axes subtract.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    group_kernel(const __grid_constant__ QueryAndGroupArgs args, int slots_per_block) {
  __shared__ GroupSlot from[kMostSlots];
  const int64_t all = args.clouds * args.queries * args.slots;
  const int64_t first = int64_t{blockIdx.x} * slots_per_block;
  const int slots = static_cast<int>(min(int64_t{slots_per_block}, all - first));
  for (int i = threadIdx.x; i < slots; i += kThreads) {
    const int64_t row = divide(first + i, args.slots);
    from[i] = GroupSlot::of(args, row, divide(row, args.queries), first + i - row * args.slots);
  }
  __syncthreads();
  const int64_t columns = args.columns();
  if (args.channels > 0) {
    const int team = team_of(args.channels);
    const int lane = static_cast<int>(threadIdx.x) & (team - 1);
    for (int slot = static_cast<int>(threadIdx.x) / team; slot < slots; slot += kThreads / team) {
      group_features<Word>(args, from[slot], lane, team, (first + slot) * columns);
    }
  }
  if (args.use_xyz) {
    const int team = team_of(args.dims);
    const int lane = static_cast<int>(threadIdx.x) & (team - 1);
    for (int slot = static_cast<int>(threadIdx.x) / team; slot < slots; slot += kThreads / team) {
      group_coordinates(args, from[slot], lane, team, (first + slot) * columns);
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
