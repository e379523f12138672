// SPDX-License-Identifier: Apache-2.0
//
// Segment sums over an inverse index, for any Gradient of segment_sum.h. Rows of up to kSumChunk
// slots: channel-last, each group of rows has as many threads as a row has items; channels first,
// one thread per row. Longer rows: a row of threads per chunk, with partial sums in the workspace,
// which the last one to finish adds up in order. Each slot is read once, up to 16 bytes per thread
// and a few ahead; each element is written once.
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/grouping/segment_sum.h"

namespace torchvox {

// Slots of a thread whose gradients are in flight at once.
template <class Gradient>
inline constexpr int kSumAhead = sizeof(typename Gradient::Sum) > 16 ? 4 : 8;

// What another block wrote: not from this multiprocessor's own cache.
template <class Number, int kWidth>
__device__ Channels<Number, kWidth> load_fresh(const Channels<Number, kWidth>* from) {
  Channels<Number, kWidth> channels;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) channels.at[i] = __ldcg(&from->at[i]);
  return channels;
}

// The slots at [at, at + kAhead) of a segment, repeating the last one past its end: without
// conditions all loads are in flight at once.
template <int kAhead>
__device__ void load_slots(const int32_t* __restrict__ order, int32_t at, int32_t end,
                           uint32_t (&slot)[kAhead]) {
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    slot[k] = static_cast<uint32_t>(__ldg(order + (at + k < end ? at + k : end - 1)));
  }
}

// Calls add(position, gradient.load(slot)) for the slots at [begin, end), in order.
template <class Gradient, class Add>
__device__ void each_slot(const Gradient& gradient, const int32_t* order, int32_t begin,
                          int32_t end, const Add& add) {
  constexpr int kAhead = kSumAhead<Gradient>;
  if (begin >= end) return;
  uint32_t slot[kAhead];
  load_slots(order, begin, end, slot);
  for (int32_t at = begin; at < end; at += kAhead) {
    decltype(gradient.load(0)) value[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) value[k] = gradient.load(slot[k]);
    if (at + kAhead < end) load_slots(order, at + kAhead, end, slot);
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (at + k < end) add(at + k, value[k]);
    }
  }
}

// Channel-last. As many threads per group of rows (kGroupKeys) as a row has items, at most a warp:
// each walks the consecutive slots of all rows of the group in order, reads their gradients, and
// writes the sum of each row. So gradients are read ahead across the ends of rows, and threads have
// about the same work.
template <class Gradient>
__global__ void __launch_bounds__(kRowThreads)
    groups_kernel(const __grid_constant__ typename Gradient::Args args, int lanes_bits) {
  using Sum = typename Gradient::Sum;
  let_next_begin();
  const InverseIndex& inverse = args.inverse;
  const int64_t items = Gradient::items(args), groups = inverse.groups();
  const int64_t group = (int64_t{blockIdx.x} * kRowThreads + threadIdx.x) >> lanes_bits;
  if (group >= groups) return;
  for (int64_t cloud = blockIdx.y; cloud < inverse.clouds; cloud += gridDim.y) {
    const int32_t* const group_rows = inverse.group_rows + cloud * (groups + 1) + group;
    const int32_t first_row = group_rows[0];
    int32_t last_row = group_rows[1];
    if (first_row == last_row) continue;
    const int32_t* const __restrict__ offsets = inverse.offsets + cloud * (inverse.rows + 1);
    const int32_t begin = offsets[first_row], last_begin = offsets[last_row - 1];
    int32_t end = offsets[last_row];
    if (end - last_begin > kSumChunk) {  // by several blocks
      end = last_begin;
      --last_row;
    }
    for (int64_t item = threadIdx.x & ((1 << lanes_bits) - 1); item < items;
         item += 1 << lanes_bits) {
      Gradient gradient(args, cloud, item);
      int32_t row = first_row;
      if (row == last_row) continue;
      int32_t row_end = __ldg(offsets + row + 1);
      gradient.begin(row);
      Sum sum;
      each_slot(gradient, inverse.order + cloud * inverse.slots, begin, end,
                [&](int32_t at, const auto& value) {
                  while (at == row_end) {
                    gradient.store(row, sum);
                    sum = Sum{};
                    ++row;
                    row_end = __ldg(offsets + row + 1);
                    gradient.begin(row);
                  }
                  sum += gradient.term(value);
                });
      for (; row < last_row; ++row) {
        gradient.store(row, sum);
        sum = Sum{};
      }
    }
  }
}

// Channels first, where rows are neighbors in memory. One thread per row, and blocks walk the
// items: reads the gradients of the row's slots, writes their sum.
template <class Gradient>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ typename Gradient::Args args) {
  let_next_begin();
  const InverseIndex& inverse = args.inverse;
  const int64_t items = Gradient::items(args);
  const int64_t row = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (row >= inverse.rows) return;
  for (int64_t y = blockIdx.y; y < inverse.clouds * items; y += gridDim.y) {
    const int64_t cloud = y / items;
    const int32_t* const range = inverse.offsets + cloud * (inverse.rows + 1) + row;
    const int32_t begin = range[0], end = range[1];
    if (end - begin > kSumChunk) continue;
    Gradient gradient(args, cloud, y - cloud * items);
    gradient.begin(row);
    typename Gradient::Sum sum;
    each_slot(gradient, inverse.order + cloud * inverse.slots, begin, end,
              [&](int32_t, const auto& value) { sum += gradient.term(value); });
    gradient.store(row, sum);
  }
}

// Rows of several chunks. A row of threads per task: sums its chunk into `partial`; the last one to
// finish of a row adds up its chunks in order and writes the row.
template <class Gradient>
__global__ void __launch_bounds__(kRowThreads)
    chunks_kernel(const __grid_constant__ typename Gradient::Args args,
                  typename Gradient::Sum* partial) {
  using Sum = typename Gradient::Sum;
  __shared__ bool last[kRowThreads];
  const InverseIndex& inverse = args.inverse;
  const int64_t items = Gradient::items(args);
  const int32_t tasks = *inverse.long_rows.count;
  for (int64_t first = int64_t{blockIdx.x} * blockDim.y; first < tasks;
       first += int64_t{gridDim.x} * blockDim.y) {
    const int64_t number = first + threadIdx.y;
    LongRowTask task = {};
    int32_t chunks = 0;
    if (number < tasks) {
      task = inverse.long_rows.tasks[number];
      const int32_t* const range = inverse.offsets + task.cloud * (inverse.rows + 1) + task.row;
      const int32_t begin = range[0] + task.chunk * kSumChunk, end = range[1];
      chunks = (end - range[0] + kSumChunk - 1) / kSumChunk;
      for (int64_t item = threadIdx.x; item < items; item += blockDim.x) {
        Gradient gradient(args, task.cloud, item);
        gradient.begin(task.row);
        Sum sum;
        each_slot(gradient, inverse.order + task.cloud * inverse.slots, begin,
                  end - begin > kSumChunk ? begin + kSumChunk : end,
                  [&](int32_t, const auto& value) { sum += gradient.term(value); });
        partial[number * items + item] = sum;
      }
    }
    __threadfence();
    __syncthreads();
    if (number < tasks && threadIdx.x == 0) {
      last[threadIdx.y] = atomicAdd(inverse.long_rows.arrived + task.first, 1) == chunks - 1;
      __threadfence();
    }
    __syncthreads();
    if (number < tasks && last[threadIdx.y]) {
      if (threadIdx.x == 0) inverse.long_rows.arrived[task.first] = 0;  // for the next sum
      for (int64_t item = threadIdx.x; item < items; item += blockDim.x) {
        Sum total;
        for (int32_t chunk = 0; chunk < chunks; ++chunk) {
          total += load_fresh(partial + (task.first + chunk) * items + item);
        }
        Gradient(args, task.cloud, item).store(task.row, total);
      }
    }
    __syncthreads();
  }
  wait_for_previous();  // so that this kernel does not end before the one with the other rows
}

// log2 of the lanes of a group: as many lanes as keep at least two thirds of them busy, at most a
// warp.
inline int lanes_bits_for(int64_t items) {
  int best = 0;
  for (int bits = 1; bits <= 5; ++bits) {
    const int64_t lanes = ceil_div<int64_t>(items, 1 << bits) << bits;  // of all rounds
    if (2 * lanes <= 3 * items) best = bits;
  }
  return best;
}

// kRowsOnX: rows are neighbors in memory, not the items of a row.
template <class Gradient, bool kRowsOnX>
cudaError_t launch_sums(const typename Gradient::Args& args, void* partial,
                        const CudaContext& context) {
  using Sum = typename Gradient::Sum;
  const InverseIndex& inverse = args.inverse;
  const int64_t items = Gradient::items(args);
  if constexpr (kRowsOnX) {
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(inverse.rows, kRowThreads)),
                    grid_y(inverse.clouds * items));
    TORCHVOX_CUDA_CHECK(
        launch_blocks(rows_kernel<Gradient>, grid, kRowThreads, context.stream, args));
  } else {
    const int bits = lanes_bits_for(items);
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(inverse.groups() << bits, kRowThreads)),
                    grid_y(inverse.clouds));
    TORCHVOX_CUDA_CHECK(
        launch_blocks(groups_kernel<Gradient>, grid, kRowThreads, context.stream, args, bits));
  }
  const int64_t tasks = inverse.most_tasks();
  if (tasks == 0) return cudaSuccess;
  const dim3 block = block_of(items);
  const int64_t most = int64_t{16} * context.target.multiprocessors;
  const int64_t blocks = ceil_div<int64_t>(tasks, block.y);
  return launch_after_sharing(chunks_kernel<Gradient>,
                              dim3(static_cast<unsigned>(blocks < most ? blocks : most)), block, 0,
                              context, args, static_cast<Sum*>(partial));
}

template <class Gradient>
int64_t partial_sums_bytes(const typename Gradient::Args& args) {
  return args.inverse.most_tasks() * Gradient::items(args) *
      static_cast<int64_t>(sizeof(typename Gradient::Sum));
}

}  // namespace torchvox
