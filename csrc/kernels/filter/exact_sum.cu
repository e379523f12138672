// SPDX-License-Identifier: Apache-2.0
//
// voxel_sum, voxel_mean and voxel_mean_of_sums on the GPU:
//
//   small  rows of up to 16 points, one thread a row and column; others become tasks of 64 points
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
constexpr int64_t kSmallRow = 16;
constexpr int64_t kTaskPoints = 64;

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

// The places [first, end), every `step`-th of them, kAhead values on their way at once.
template <int kAhead, class T>
__device__ __forceinline__ void add_places(const VoxelSumArgs& args, int64_t first, int64_t end,
                                           int64_t step, int64_t column, ExactSum<T>* sum) {
  for (int64_t place = first; place < end; place += kAhead * step) {
    int64_t point[kAhead];
    T value[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      point[k] = place + k * step < end ? args.perm[place + k * step] : -1;
      if (point[k] >= args.points) point[k] = -1;
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (point[k] < 0) continue;
      value[k] = static_cast<const T*>(args.values)[point[k] * args.columns + column];
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      if (point[k] >= 0) sum->add(value[k]);
    }
  }
}

// False where there is no room, as offsets in disorder can ask for: their rows overlap.
template <class T>
__device__ bool add_tasks(const SumWork<T>& work, int64_t row, int64_t points) {
  const uint32_t chunks = static_cast<uint32_t>(ceil_div(points, kTaskPoints));
  const uint32_t base = atomicAdd(work.taken, chunks);
  const bool fits = int64_t{base} + chunks <= work.limit;
  for (uint32_t c = 0; c < chunks && base + c < work.limit; ++c) {
    work.tasks[base + c] = {fits ? static_cast<uint32_t>(row) : kNoRow, c};
  }
  return fits;
}

template <class T>
__global__ void __launch_bounds__(kThreads) small_kernel(const __grid_constant__ VoxelSumArgs args,
                                                         const __grid_constant__ SumWork<T> work) {
  const int64_t elements = args.rows * args.columns;
  for (int64_t at = global_thread(); at < elements; at += global_stride()) {
    const int64_t row = divide(at, args.columns), column = at - row * args.columns;
    const int64_t begin = args.begin_of(row), end = args.end_of(row);
    int64_t columns = 1;
    if (end - begin > kSmallRow) {
      if (column > 0 || add_tasks(work, row, end - begin)) continue;
      columns = args.columns;
    }
    for (int64_t c = column; c < column + columns; ++c) {
      ExactSum<T> sum;
      add_places<4>(args, begin, end, 1, c, &sum);
      args.store(row, c, sum, end - begin);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) large_kernel(const __grid_constant__ VoxelSumArgs args,
                                                         const __grid_constant__ SumWork<T> work) {
  const int lane = threadIdx.x % 32;
  const int64_t tasks = *work.taken < work.limit ? *work.taken : work.limit;
  for (int64_t t = global_thread() / 32; t < tasks; t += global_stride() / 32) {
    const SumTask task = work.tasks[t];
    if (task.row == kNoRow) continue;
    const int64_t begin = args.begin_of(task.row), end = args.end_of(task.row);
    const int64_t first = begin + task.chunk * kTaskPoints;
    const int64_t last = end - first < kTaskPoints ? end : first + kTaskPoints;
    for (int64_t base = 0; base < args.columns; base += 32) {
      const int width = args.columns - base < 32 ? static_cast<int>(args.columns - base) : 32;
      const int groups = 32 / width, group = lane / width;
      const int64_t column = base + lane % width;
      ExactSum<T> mine, sum;
      if (group < groups) add_places<8>(args, first + group, last, groups, column, &mine);
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
    TORCHVOX_CUDA_CHECK(
        launch_items(small_kernel<T>, args.rows * args.columns, kThreads, context, args, work));
    return launch_items(large_kernel<T>, 32 * work.limit, kThreads, context, args, work);
  });
}

cudaError_t launch(const VoxelMeanOfSumsArgs& args, void*, const CudaContext& context) {
  return with_value_type(args.type, [&](auto type) {
    return launch_elements<mean_of_sums<decltype(type)>>(args, args.rows * args.columns, context);
  });
}

}  // namespace torchvox
