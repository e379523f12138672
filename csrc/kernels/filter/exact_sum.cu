// SPDX-License-Identifier: Apache-2.0
//
// voxel_sum and voxel_mean on the GPU. One thread, or several where there are few rows, adds a row
// and column; where several blocks share a row, they add up by integer atomics, and the last one
// stores.
#include <algorithm>
#include <cstring>

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/filter/exact_sum.h"

namespace torchvox {
namespace {

constexpr int kSpan = 256;  // places of a block, and its threads
constexpr int kTileColumns = 8;

// Sums of the rows that span several blocks; zero before the kernel. At most one row begins in a
// span and ends beyond it.
template <class T>
struct SumWork {
  ExactSum<T>* sums;  // [spans, columns]
  uint32_t* done;  // [spans, columns]: spans that have added to the row

  SumWork(const VoxelSumArgs& args, Workspace& workspace) {
    const int64_t slots = (args.points / kSpan + 1) * args.columns;
    sums = workspace.take<ExactSum<T>>(slots);
    done = workspace.take<uint32_t>(slots);
  }
};

// i / columns of i up to a few thousand, without a division.
struct Division {
  int columns, inverse;

  __device__ explicit Division(int columns) : columns(columns), inverse(65536 / columns + 1) {}
  __device__ int operator()(int i, int* rest) const {
    const int quotient = i * inverse >> 16;
    *rest = i - quotient * columns;
    return quotient;
  }
};

// The first row that ends after a place; the whole block searches.
__device__ int64_t row_of_place(const VoxelSumArgs& args, int64_t place) {
  int64_t low = 0, high = args.rows;
  while (low < high) {
    const int64_t step = ceil_div<int64_t>(high - low, kSpan), row = low + step * threadIdx.x;
    const int before = __syncthreads_count(row < high && args.end_of(row) <= place);
    if (before == 0) break;
    high = min(high, low + step * before);
    low += step * (before - 1) + 1;
  }
  return low;
}

template <class T>
struct SpanShared {
  uint64_t values[kSpan * kTileColumns];  // by place and column: in fixed point, or the bits of T
  uint32_t points[kSpan];  // by place
  int32_t begins[kSpan], ends[kSpan];  // by row
};

// Sum of every `step`-th place in [from, to).
template <class T>
__device__ __forceinline__ ExactSum<T> sum_places(const SpanShared<T>& shared, int column,
                                                  int columns, int from, int to, int step,
                                                  bool fixed, uint32_t points) {
  ExactSum<T> sum;
  if constexpr (kSumWords<T> > 1) {
    if (fixed) {
      uint64_t total = 0;
#pragma unroll 4
      for (int p = from; p < to; p += step) total += shared.values[p * columns + column];
      if (from < to) sum.add_fixed(total, static_cast<uint64_t>((to - from + step - 1) / step));
      return sum;
    }
  }
  for (int p = from; p < to; p += step) {
    T value;
    memcpy(&value, &shared.values[p * columns + column], sizeof(T));
    if (shared.points[p] < points) sum.add(value);
  }
  return sum;
}

// Zeros for the rows of the block that have no point.
template <class T>
__device__ void store_empty(const VoxelSumArgs& args, int64_t first) {
  const int64_t row = first + threadIdx.x, rows = min(args.rows - first, int64_t{kSpan});
  const bool empty = row < args.rows && args.begin_of(row) >= args.end_of(row);
  if (__syncthreads_count(empty) == rows) {
    for (int64_t i = threadIdx.x; i < rows * args.columns; i += kSpan) {
      args.store(first, i, ExactSum<T>{}, 0);
    }
  } else if (empty) {
    for (int64_t c = 0; c < args.columns; ++c) args.store(row, c, ExactSum<T>{}, 0);
  }
}

// One block per span of places and tile of columns: reads offsets, perm and values, writes the sums
// or means of the rows that end in it.
template <class T>
__global__ void __launch_bounds__(kSpan)
    sum_kernel(const __grid_constant__ VoxelSumArgs args, const __grid_constant__ SumWork<T> work) {
  __shared__ SpanShared<T> shared;
  const uint32_t tiles = static_cast<uint32_t>(ceil_div<int64_t>(args.columns, kTileColumns));
  const uint32_t span = blockIdx.x / tiles, tile = blockIdx.x - span * tiles;
  const int64_t first = int64_t{span} * kSpan, first_column = int64_t{tile} * kTileColumns;
  wait_for_previous();
  const int64_t points = args.end_of(args.rows - 1), last = min(first + kSpan, points);
  const int64_t place = first + threadIdx.x;
  shared.points[threadIdx.x] = place < last ? static_cast<uint32_t>(args.perm[place]) : 0xffffffffu;
  if (tile == 0 && first < args.rows) store_empty<T>(args, first);
  if (first >= last) return;
  int64_t row = row_of_place(args, first);

  const int columns = static_cast<int>(min(args.columns - first_column, int64_t{kTileColumns}));
  const Division divide(columns);
  const T* const values = static_cast<const T*>(args.values) + first_column;
  const uint32_t stride = static_cast<uint32_t>(args.columns);
  const uint32_t all_points = static_cast<uint32_t>(args.points);
  int c;
  T value[kTileColumns];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kTileColumns; ++k) {
    value[k] = T{};
    if (k >= columns) continue;
    const uint32_t point = shared.points[divide(k * kSpan + static_cast<int>(threadIdx.x), &c)];
    if (point < all_points) value[k] = values[uint64_t{point} * stride + static_cast<unsigned>(c)];
  }
  // In fixed point each place counts as one value, so each must have a valid point.
  bool fixed = args.sums == nullptr && (place >= last || shared.points[threadIdx.x] < all_points);
#pragma unroll
  for (int k = 0; k < kTileColumns; ++k) fixed = fixed && ExactSum<T>::is_near(value[k]);
  fixed = __syncthreads_and(fixed);
#pragma unroll
  for (int k = 0; k < kTileColumns; ++k) {
    if (k >= columns) continue;
    uint64_t* const to = &shared.values[k * kSpan + threadIdx.x];
    if constexpr (kSumWords<T> > 1) {
      if (fixed) {
        *to = ExactSum<T>::fixed(value[k]);
        continue;
      }
    }
    memcpy(to, &value[k], sizeof(T));
  }

  for (bool more = true; more;) {
    const int64_t mine = row + threadIdx.x;
    const int64_t my_begin = mine < args.rows ? args.begin_of(mine) : points;
    const int64_t my_end = mine < args.rows ? args.end_of(mine) : points;
    shared.begins[threadIdx.x] = static_cast<int32_t>(my_begin);
    shared.ends[threadIdx.x] = static_cast<int32_t>(my_end);
    const int rows = __syncthreads_count(my_begin < last);
    const int items = rows * columns;
    int bits = 0;  // log2 of the lanes of an item
    while (bits < 5 && items << (bits + 1) <= kSpan) ++bits;
    const int lanes = 1 << bits;
    for (int i = static_cast<int>(threadIdx.x); (i & ~31) < items << bits; i += kSpan) {
      const int r = divide(i >> bits, &c) % kSpan;  // any row for lanes past the last item
      const int64_t begin = shared.begins[r], end = shared.ends[r];
      const int from = static_cast<int>(clamp_index(begin - first, 0, kSpan));
      const int to = i >> bits < items ? static_cast<int>(min(end, last) - first) : 0;
      ExactSum<T> sum =
          sum_places(shared, c, columns, from + (i & (lanes - 1)), to, lanes, fixed, all_points);
      for (int step = 1; step < lanes; step *= 2) {
        for (int k = 0; k < kSumWords<T>; ++k) {
          sum.words[k] += __shfl_xor_sync(kFullWarp, sum.words[k], step);
        }
      }
      if ((i & (lanes - 1)) != 0 || from >= to) continue;
      const int64_t column = first_column + c;
      if (begin < first || end > last) {
        const int64_t at = begin / kSpan * args.columns + column;
        const int64_t spans = ceil_div<int64_t>(end, kSpan) - begin / kSpan;
        for (int k = 0; k < kSumWords<T>; ++k) atomic_add(&work.sums[at].words[k], sum.words[k]);
        __threadfence();
        if (int64_t{atomicAdd(&work.done[at], 1u)} + 1 < spans) continue;
        __threadfence();
        for (int k = 0; k < kSumWords<T>; ++k) sum.words[k] = load_relaxed(&work.sums[at].words[k]);
      }
      args.store(row + r, column, sum, end - begin);
    }
    const int64_t reached = shared.ends[kSpan - 1];
    more =
        rows == kSpan && reached < last;  // skips rows without points, of which there may be many
    __syncthreads();
    if (more) row = max(row + kSpan, row_of_place(args, reached));
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const VoxelSumArgs& args, const Target&) {
  return with_value_type(args.type,
                         [&](auto type) { return carved_bytes<SumWork<decltype(type)>>(args); });
}

cudaError_t clear_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context) {
  const int64_t bytes = workspace_bytes_cuda(args, context.target);
  return cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), context.stream);
}

cudaError_t add_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context) {
  if (args.rows == 0 || args.columns == 0) return cudaSuccess;
  return with_value_type(args.type, [&](auto type) {
    using T = decltype(type);
    const auto work = carve<SumWork<T>>(memory, args);
    const int64_t spans = ceil_div<int64_t>(std::max(args.points, args.rows), kSpan);
    const int64_t tiles = ceil_div<int64_t>(args.columns, kTileColumns);
    return launch_after(sum_kernel<T>, static_cast<unsigned>(spans * tiles), kSpan, context, args,
                        work);
  });
}

cudaError_t launch(const VoxelSumArgs& args, void* memory, const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(clear_sums(args, memory, context));
  return add_sums(args, memory, context);
}

}  // namespace torchvox
