// SPDX-License-Identifier: Apache-2.0
//
// voxel_sum, voxel_mean and voxel_mean_of_sums on the GPU:
//
//   small  32 rows a warp, a lane a row and column; those of more than 8 points become tasks of 64
//   large  one warp a task. What several tasks have of a row is added up by integer atomics, and
//          the last one stores it
#include <algorithm>

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/filter/exact_sum.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kSmallRow = 8;
constexpr int64_t kTaskPoints = 64;
static_assert(kTaskPoints == 64, "points that a warp holds");

struct SumTask {
  uint32_t row, chunk;
};
constexpr uint32_t kNoRow = 0xffffffffu;

template <class T>
struct SumWork {
  int64_t limit, slots;
  SumTask* tasks;  // [limit], kNoRow of those without room
  // From here on zero before the first kernel. A slot is that of the row of several tasks that
  // begins in these kTaskPoints places.
  uint32_t* taken;  // tasks
  ExactSum<T>* sums;  // [slots, columns]
  uint32_t* done;  // [slots, columns] tasks
  int64_t zero_bytes;

  SumWork(const VoxelSumArgs& args, Workspace& workspace)
      : limit(args.points / kSmallRow + args.points / kTaskPoints + 1),
        slots(args.points / kTaskPoints + 1),
        tasks(workspace.take<SumTask>(limit)) {
    const int64_t before = workspace.bytes();
    taken = workspace.take<uint32_t>(1);
    sums = workspace.take<ExactSum<T>>(slots * args.columns);
    done = workspace.take<uint32_t>(slots * args.columns);
    zero_bytes = workspace.bytes() - before;
  }
};

// Values of a column, on their way at once. Points past the last one are none.
template <int kAhead, class T>
__device__ __forceinline__ void add_points(const VoxelSumArgs& args,
                                           const uint32_t (&point)[kAhead], int64_t column,
                                           ExactSum<T>* sum) {
  const T* const values = static_cast<const T*>(args.values) + column;
  const uint32_t points = static_cast<uint32_t>(args.points);
  T value[kAhead];
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    if (point[k] < points) value[k] = values[point[k] * args.columns];
  }
#pragma unroll
  for (int k = 0; k < kAhead; ++k) {
    if (point[k] < points) sum->add(value[k]);
  }
}
__device__ __forceinline__ uint32_t point_at(const VoxelSumArgs& args, int64_t place, int64_t end) {
  return place < end ? static_cast<uint32_t>(args.perm[place]) : kNoRow;
}

// Tasks of the rows of a warp, a lane a row. False where there is no room, as offsets in disorder
// can ask for: their rows overlap.
template <class T>
__device__ __forceinline__ bool add_tasks(const SumWork<T>& work, int64_t row, int64_t points) {
  const uint32_t chunks =
      points > kSmallRow ? static_cast<uint32_t>(ceil_div(points, kTaskPoints)) : 0;
  const uint32_t end = warp_inclusive(chunks);
  uint32_t base = 0;
  if (threadIdx.x % 32 == 31 && end > 0) base = atomicAdd(work.taken, end);
  base = __shfl_sync(kFullWarp, base, 31) + end - chunks;
  const bool fits = int64_t{base} + chunks <= work.limit;
  for (uint32_t c = 0; c < chunks && base + c < work.limit; ++c) {
    work.tasks[base + c] = {fits ? static_cast<uint32_t>(row) : kNoRow, c};
  }
  return chunks > 0 && fits;
}

template <class T>
__global__ void __launch_bounds__(kThreads) small_kernel(const __grid_constant__ VoxelSumArgs args,
                                                         const __grid_constant__ SumWork<T> work) {
  constexpr int kAhead = 4;
  const int lane = threadIdx.x % 32;
  for (int64_t base = global_thread() - lane; base < args.rows; base += global_stride()) {
    const int64_t row = base + lane;
    const int64_t begin = row < args.rows ? args.begin_of(row) : 0;
    int64_t end = row < args.rows ? args.end_of(row) : begin;
    if (end < begin) end = begin;
    const bool done = add_tasks(work, row, end - begin) || row >= args.rows;
    uint32_t first[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) first[k] = done ? kNoRow : point_at(args, begin + k, end);
    const uint32_t size = done ? kNoRow : static_cast<uint32_t>(end - begin);
    const bool any = __any_sync(kFullWarp, size != 0);
    int64_t r = lane / args.columns, column = lane % args.columns;
    const int64_t row_step = 32 / args.columns, column_step = 32 % args.columns;
    for (int64_t c = 0; c < args.columns; ++c) {
      ExactSum<T> sum;
      uint32_t n = 0;
      if (any) {
        n = __shfl_sync(kFullWarp, size, static_cast<int>(r));
        const int64_t from = __shfl_sync(kFullWarp, begin, static_cast<int>(r));
        uint32_t point[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          point[k] = __shfl_sync(kFullWarp, first[k], static_cast<int>(r));
        }
        add_points(args, point, column, &sum);
        for (int64_t more = kAhead; n != kNoRow && more < n; more += kAhead) {
#pragma unroll
          for (int k = 0; k < kAhead; ++k) point[k] = point_at(args, from + more + k, from + n);
          add_points(args, point, column, &sum);
        }
      }
      if (n != kNoRow) args.store(base + r, column, sum, n);
      r += row_step;
      column += column_step;
      if (column >= args.columns) {
        column -= args.columns;
        ++r;
      }
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) large_kernel(const __grid_constant__ VoxelSumArgs args,
                                                         const __grid_constant__ SumWork<T> work) {
  constexpr int kAhead = 8;
  const int lane = threadIdx.x % 32;
  const int64_t tasks = *work.taken < work.limit ? *work.taken : work.limit;
  for (int64_t t = global_thread() / 32; t < tasks; t += global_stride() / 32) {
    const SumTask task = work.tasks[t];
    if (task.row == kNoRow) continue;
    const int64_t begin = args.begin_of(task.row), end = args.end_of(task.row);
    const int64_t first = begin + task.chunk * kTaskPoints;
    const int64_t last = end - first < kTaskPoints ? end : first + kTaskPoints;
    const uint32_t half[2] = {point_at(args, first + lane, last),
                              point_at(args, first + 32 + lane, last)};
    for (int64_t base = 0; base < args.columns; base += 32) {
      const int width = args.columns - base < 32 ? static_cast<int>(args.columns - base) : 32;
      const int groups = 32 / width, group = lane / width;
      const int64_t column = base + lane % width;
      ExactSum<T> mine, sum;
      for (int i = 0; i < last - first; i += kAhead * groups) {
        uint32_t point[kAhead];
#pragma unroll
        for (int k = 0; k < kAhead; ++k) {
          const int at = i + k * groups + group;
          const uint32_t low = __shfl_sync(kFullWarp, half[0], at % 32);
          const uint32_t high = __shfl_sync(kFullWarp, half[1], at % 32);
          point[k] = group >= groups || at >= kTaskPoints ? kNoRow : at < 32 ? low : high;
        }
        add_points(args, point, column, &mine);
      }
      for (int g = 0; g < groups; ++g) {
        for (int k = 0; k < kSumWords<T>; ++k) {
          sum.words[k] += __shfl_sync(kFullWarp, mine.words[k], (lane + g * width) % 32);
        }
      }
      if (lane >= width) continue;
      const int64_t at = begin / kTaskPoints * args.columns + column;
      const int64_t chunks = ceil_div(end - begin, kTaskPoints);
      if (chunks > 1) {
        for (int k = 0; k < kSumWords<T>; ++k) atomic_add(&work.sums[at].words[k], sum.words[k]);
        __threadfence();
        if (int64_t{atomicAdd(&work.done[at], 1u)} + 1 < chunks) continue;
        __threadfence();
        for (int k = 0; k < kSumWords<T>; ++k) sum.words[k] = load_relaxed(&work.sums[at].words[k]);
      }
      args.store(task.row, column, sum, end - begin);
    }
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const VoxelSumArgs& args, const Target&) {
  return with_value_type(args.type,
                         [&](auto type) { return carved_bytes<SumWork<decltype(type)>>(args); });
}

cudaError_t launch(const VoxelSumArgs& args, void* memory, const CudaContext& context) {
  if (args.rows == 0 || args.columns == 0) return cudaSuccess;
  return with_value_type(args.type, [&](auto type) {
    using T = decltype(type);
    Workspace workspace(memory);
    const SumWork<T> work(args, workspace);
    TORCHVOX_CUDA_CHECK(
        cudaMemsetAsync(work.taken, 0, static_cast<size_t>(work.zero_bytes), context.stream));
    TORCHVOX_CUDA_CHECK(launch_items(small_kernel<T>, args.rows, kThreads, context, args, work));
    return launch_items(large_kernel<T>, 32 * work.limit, kThreads, context, args, work);
  });
}

cudaError_t launch(const VoxelMeanOfSumsArgs& args, void*, const CudaContext& context) {
  return with_value_type(args.type, [&](auto type) {
    return launch_elements<mean_of_sums<decltype(type)>>(args, args.rows * args.columns, context);
  });
}

}  // namespace torchvox
