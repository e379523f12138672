// SPDX-License-Identifier: Apache-2.0
//
// box_query on the GPU: one block per box, which reads the bits of 8,192 points at a time. Without
// a grid the slot of a point is the number of bits before it. With a grid the block lists the
// points in order and handles 256 at once: its warps take their slots one after another, from one
// counter per cell in shared memory, or in the output where there are more cells than that.
#include <algorithm>

#include "csrc/kernels/boxes/box_query.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kSharedCells = 4096;

// body(rank, offset) for each point of the box among the 32 * kThreads from word `first` on, where
// rank counts those before it and offset is its distance from the first. Returns their number.
// Called by all threads.
template <class Body>
__device__ __forceinline__ uint32_t each_point(const BoxWalk& walk, int64_t first, uint32_t* sums,
                                               const Body& body) {
  uint32_t left = first + threadIdx.x < walk.words ? walk.bits[first + threadIdx.x] : 0, total;
  uint32_t rank = block_prefix(static_cast<uint32_t>(__popc(left)), sums, &total);
  for (; left != 0; left &= left - 1) body(rank++, threadIdx.x * 32 + __ffs(left) - 1);
  return total;
}

// Without a grid. One block per box: reads its bits, writes the indices of its first points and its
// count.
__global__ void __launch_bounds__(kThreads)
    first_kernel(const __grid_constant__ BoxQueryArgs args, const void* bits) {
  __shared__ uint32_t sums[32];
  for (int64_t row = blockIdx.x; row < args.rows(); row += gridDim.x) {
    const BoxWalk walk(args, bits, row);
    int64_t count = 0;
    for (int64_t first = 0; first < walk.words; first += kThreads) {
      count += each_point(walk, first, sums, [&](uint32_t rank, int offset) {
        const int64_t slot = count + rank;
        if (slot < args.slots) walk.index[slot] = static_cast<int32_t>(first * 32 + offset);
      });
    }
    if (threadIdx.x == 0) walk.count[0] = static_cast<int32_t>(count);
    for (int64_t slot = count + threadIdx.x; slot < args.slots; slot += kThreads) {
      walk.index[slot] = -1;
    }
  }
}

// With a grid. One block per box: reads its bits and points, writes the indices of the first points
// of each cell and the counts of the cells.
template <class T>
__global__ void __launch_bounds__(kThreads)
    grid_kernel(const __grid_constant__ BoxQueryArgs args, const void* bits) {
  __shared__ uint32_t sums[32];
  __shared__ uint16_t listed[32 * kThreads];
  __shared__ int32_t counters[kSharedCells];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t cells = args.cells();
  for (int64_t row = blockIdx.x; row < args.rows(); row += gridDim.x) {
    const BoxWalk walk(args, bits, row);
    const CellBox<T> box(args, args.inside.boxes.row<T>(walk.batch, row % args.inside.boxes.rows));
    int32_t* const counts = cells <= kSharedCells ? counters : walk.count;
    for (int64_t cell = threadIdx.x; cell < cells; cell += kThreads) counts[cell] = 0;
    for (int64_t first = 0; first < walk.words; first += kThreads) {
      const uint32_t total = each_point(walk, first, sums, [&](uint32_t rank, int offset) {
        listed[rank] = static_cast<uint16_t>(offset);
      });
      __syncthreads();
      for (uint32_t begin = 0; begin < total; begin += kThreads) {
        const bool is_point = begin + threadIdx.x < total;
        const int64_t i = first * 32 + (is_point ? listed[begin + threadIdx.x] : 0);
        const int32_t cell = is_point ? box.cell(args.inside.points.row<T>(walk.batch, i)) : -1;
        const unsigned same = __match_any_sync(kFullWarp, cell);
        const int before = __popc(same & lanes_below(lane));
        const int turns = static_cast<int>(min((total - begin + 31) / 32, uint32_t{kWarps}));
        int32_t slot = 0;
        for (int turn = 0; turn < turns; ++turn) {
          if (warp == turn) {
            if (is_point) slot = counts[cell] + before;
            __syncwarp();
            if (is_point && before == 0) counts[cell] = slot + __popc(same);
          }
          __syncthreads();
        }
        if (is_point && slot < args.slots) {
          walk.index[cell * args.slots + slot] = static_cast<int32_t>(i);
        }
      }
    }
    __syncthreads();
    for (int64_t cell = warp; cell < cells; cell += kWarps) {
      const int32_t count = counts[cell];
      if (counts == counters && lane == 0) walk.count[cell] = count;
      for (int64_t slot = int64_t{count} + lane; slot < args.slots; slot += 32) {
        walk.index[cell * args.slots + slot] = -1;
      }
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t launch(const BoxQueryArgs& args, void* memory, const CudaContext& context) {
  if (args.rows() == 0) return cudaSuccess;
  const PointsInBoxesArgs bits = bits_of(args, memory);
  TORCHVOX_CUDA_CHECK(launch(bits, nullptr, context));
  const auto walk = [&](auto kernel) {
    return launch_blocks(kernel, blocks_for(args.rows(), 1, context.target), kThreads,
                         context.stream, args, static_cast<const void*>(bits.out));
  };
  if (args.cells() == 1) return walk(first_kernel);
  return args.inside.dtype == DType::kDouble ? walk(grid_kernel<double>) : walk(grid_kernel<float>);
}

}  // namespace torchvox
