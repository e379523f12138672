// SPDX-License-Identifier: Apache-2.0
//
// Sums of slots by row for any gradient of one slot (SlotGradient, DistanceGradient): rows of up to
// kSumChunk slots by one thread an element, longer ones chunk by chunk by several blocks.
#pragma once

#include "csrc/kernels/core/dependent_launch.cuh"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/row_blocks.cuh"
#include "csrc/kernels/grouping/slot_sum_common.h"

namespace torchvox {

inline constexpr int kSumThreads = kRowThreads;
inline constexpr int kSumAhead = 8;  // slots whose gradients are under way at once

// The sum of slots [at, end) of a list, at most one chunk of them.
template <class Gradient>
__device__ typename Gradient::Sum sum_chunk(const Gradient& gradient, const int32_t* order,
                                            int32_t at, int32_t end) {
  using Sum = typename Gradient::Sum;
  Sum sum = 0;
  for (; at + kSumAhead <= end; at += kSumAhead) {
    Sum value[kSumAhead];
#pragma unroll
    for (int k = 0; k < kSumAhead; ++k) value[k] = gradient(static_cast<uint32_t>(order[at + k]));
#pragma unroll
    for (int k = 0; k < kSumAhead; ++k) sum += value[k];
  }
  for (; at < end; ++at) sum += gradient(static_cast<uint32_t>(order[at]));
  return sum;
}

// One thread an element of the rows that are one chunk. Threads are (element, row) in the
// channel-last layout; channels first, all are rows and blocks walk the channels.
template <class Gradient>
__global__ void __launch_bounds__(kSumThreads)
    short_rows_kernel(const __grid_constant__ typename Gradient::Args args, bool rows_on_x) {
  let_next_begin();
  const SlotLists& lists = args.lists;
  const int64_t channels = Gradient::channels(args);
  const int64_t row = rows_on_x ? int64_t{blockIdx.x} * blockDim.x + threadIdx.x
                                : int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (row >= lists.rows) return;
  const int64_t groups = rows_on_x ? channels : 1;  // of blocks, for each cloud
  for (int64_t y = blockIdx.y; y < lists.clouds * groups; y += gridDim.y) {
    const int64_t cloud = y / groups;
    const int32_t* const range = lists.offsets + cloud * (lists.rows + 1) + row;
    const int32_t begin = range[0], end = range[1];
    if (end - begin > kSumChunk) continue;
    const int32_t* const order = lists.order + cloud * lists.slots;
    const int64_t first = rows_on_x ? y - cloud * groups : threadIdx.x;
    const int64_t step = rows_on_x ? channels : blockDim.x;
    for (int64_t channel = first; channel < channels; channel += step) {
      const Gradient gradient(args, cloud, row, channel);
      gradient.store(sum_chunk(gradient, order, begin, end));
    }
  }
}

// A block a task; the one that finds all chunks of its row summed adds them up in order.
template <class Gradient>
__global__ void __launch_bounds__(kSumThreads)
    long_rows_kernel(const __grid_constant__ typename Gradient::Args args,
                     typename Gradient::Sum* partial) {
  using Sum = typename Gradient::Sum;
  const SlotLists& lists = args.lists;
  const int64_t channels = Gradient::channels(args);
  const int32_t tasks = *lists.long_rows.count;
  __shared__ bool last;
  for (int32_t number = blockIdx.x; number < tasks; number += gridDim.x) {
    const SlotTask task = lists.long_rows.tasks[number];
    const int32_t* const range = lists.offsets + task.cloud * (lists.rows + 1) + task.row;
    const int32_t* const order = lists.order + task.cloud * lists.slots;
    const int32_t begin = range[0] + task.chunk * kSumChunk;
    const int32_t end = range[1];
    const int32_t stop = end - begin > kSumChunk ? begin + kSumChunk : end;
    for (int64_t channel = threadIdx.x; channel < channels; channel += blockDim.x) {
      const Gradient gradient(args, task.cloud, task.row, channel);
      __stcg(partial + number * channels + channel, sum_chunk(gradient, order, begin, stop));
    }
    __threadfence();
    __syncthreads();
    const int32_t chunks = (end - range[0] + kSumChunk - 1) / kSumChunk;
    if (threadIdx.x == 0) {
      last = atomicAdd(lists.long_rows.arrived + task.first, 1) == chunks - 1;
      __threadfence();
    }
    __syncthreads();
    if (last) {
      for (int64_t channel = threadIdx.x; channel < channels; channel += blockDim.x) {
        Sum total = 0;
#pragma unroll 8
        for (int32_t chunk = 0; chunk < chunks; ++chunk) {
          total += __ldcg(partial + (task.first + chunk) * channels + channel);
        }
        Gradient(args, task.cloud, task.row, channel).store(total);
      }
    }
    __syncthreads();
  }
  wait_for_previous();  // over only when the short rows are
}

template <class Gradient>
cudaError_t launch_short_rows(const typename Gradient::Args& args, bool rows_on_x,
                              const CudaContext& context) {
  const SlotLists& lists = args.lists;
  const int64_t channels = Gradient::channels(args);
  const dim3 block = rows_on_x ? dim3(kSumThreads) : block_of(channels);
  const unsigned rows_per_block = rows_on_x ? block.x : block.y;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(lists.rows, rows_per_block)),
                  grid_y(lists.clouds * (rows_on_x ? channels : 1)));
  short_rows_kernel<Gradient><<<grid, block, 0, context.stream>>>(args, rows_on_x);
  return cudaGetLastError();
}

template <class Gradient>
int64_t partial_sums_bytes(const typename Gradient::Args& args) {
  return args.lists.most_tasks() * Gradient::channels(args) *
      static_cast<int64_t>(sizeof(typename Gradient::Sum));
}

// May run beside the kernel before it, which reads the same lists and writes other rows.
template <class Gradient>
cudaError_t launch_long_rows(const typename Gradient::Args& args, void* partial,
                             const CudaContext& context) {
  const int64_t tasks = args.lists.most_tasks();
  if (tasks == 0) return cudaSuccess;
  const int64_t channels = Gradient::channels(args);
  const unsigned threads =
      channels < kSumThreads ? ceil_div<unsigned>(channels, 32) * 32 : kSumThreads;
  const int64_t most = int64_t{16} * context.target.multiprocessors;
  const dim3 blocks(static_cast<unsigned>(tasks < most ? tasks : most));
  return launch_after(long_rows_kernel<Gradient>, blocks, threads, context, args,
                      static_cast<typename Gradient::Sum*>(partial));
}

}  // namespace torchvox
