// SPDX-License-Identifier: Apache-2.0
//
// Which points lie in which boxes on the GPU. A block stages 128 boxes in shared memory at a time,
// so that each is read and its sine computed once per block. box_query: one block per box, which
// reads the bits of 8,192 points at a time. Without a grid the slot of a point is the number of
// bits before it. With a grid the block lists the points in order and handles 256 at once: its
// warps take their slots one after another, from one counter per cell in shared memory, or in the
// output where there are more cells than that.
#include <algorithm>

#include "csrc/kernels/boxes/box_query.h"
#include "csrc/kernels/boxes/points_in_boxes.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kBoxesAtOnce = 128;
constexpr int kPointsPerThread = 4;  // counting
constexpr int64_t kPointsPerBlock = kThreads * kPointsPerThread;

// Stages the boxes of a batch from `first` on in shared memory; returns how many. Called by all
// threads.
template <class T>
__device__ __forceinline__ int load_boxes(const PointsInBoxesArgs& args, int64_t batch,
                                          int64_t first, int64_t boxes, PointBox<T>* shared) {
  const int64_t left = boxes - first;
  const int count = left < kBoxesAtOnce ? static_cast<int>(left) : kBoxesAtOnce;
  __syncthreads();
  for (int g = threadIdx.x; g < count; g += blockDim.x) {
    shared[g] = point_box(args.boxes.row<T>(batch, first + g), static_cast<T>(args.margin));
  }
  __syncthreads();
  return count;
}

template <class T>
struct Point {
  T x, y, z;
};

// Point i of a batch; one past the last is NaN, which lies in no box.
template <class T>
__device__ __forceinline__ Point<T> load_point(const PointsInBoxesArgs& args, int64_t batch,
                                               int64_t i, int64_t points) {
  if (i >= points) return {static_cast<T>(portable::not_a_number()), T(0), T(0)};
  const T* const row = args.points.row<T>(batch, i);
  return {row[0], row[1], row[2]};
}

// One thread per point: writes the index of the first box that holds it, or -1.
template <class T>
__global__ void __launch_bounds__(kThreads)
    index_kernel(const __grid_constant__ PointsInBoxesArgs args) {
  __shared__ PointBox<T> shared[kBoxesAtOnce];
  const int64_t i = global_thread();
  for (int64_t batch = blockIdx.y; batch < args.batches; batch += gridDim.y) {
    const int64_t boxes = args.box_count(batch);
    const Point<T> p = load_point<T>(args, batch, i, args.point_count(batch));
    int32_t index = -1;
    for (int64_t first = 0; first < boxes; first += kBoxesAtOnce) {
      const int count = load_boxes(args, batch, first, boxes, shared);
      for (int g = 0; g < count && index < 0; ++g) {
        if (shared[g].holds(p.x, p.y, p.z)) index = static_cast<int32_t>(first + g);
      }
    }
    if (i < args.points.rows) static_cast<int32_t*>(args.out)[batch * args.points.rows + i] = index;
  }
}

// One thread per point: writes its column of the mask, so that a warp writes 32 bytes in a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    mask_kernel(const __grid_constant__ PointsInBoxesArgs args) {
  __shared__ PointBox<T> shared[kBoxesAtOnce];
  const int64_t i = global_thread(), rows = args.points.rows;
  for (int64_t batch = blockIdx.y; batch < args.batches; batch += gridDim.y) {
    const int64_t boxes = args.box_count(batch);
    const Point<T> p = load_point<T>(args, batch, i, args.point_count(batch));
    bool* const out = static_cast<bool*>(args.out) + batch * args.boxes.rows * rows + i;
    for (int64_t first = 0; first < boxes; first += kBoxesAtOnce) {
      const int count = load_boxes(args, batch, first, boxes, shared);
      for (int g = 0; g < count && i < rows; ++g) {
        out[(first + g) * rows] = shared[g].holds(p.x, p.y, p.z);
      }
    }
    for (int64_t g = boxes; g < args.boxes.rows && i < rows; ++g) out[g * rows] = false;
  }
}

// One thread per point; a warp writes one word of bits for each box.
template <class T>
__global__ void __launch_bounds__(kThreads)
    bits_kernel(const __grid_constant__ PointsInBoxesArgs args) {
  __shared__ PointBox<T> shared[kBoxesAtOnce];
  const int64_t i = global_thread(), words = args.words();
  for (int64_t batch = blockIdx.y; batch < args.batches; batch += gridDim.y) {
    const int64_t boxes = args.box_count(batch);
    const Point<T> p = load_point<T>(args, batch, i, args.point_count(batch));
    uint32_t* const out =
        static_cast<uint32_t*>(args.out) + batch * args.boxes.rows * words + i / 32;
    for (int64_t first = 0; first < boxes; first += kBoxesAtOnce) {
      const int count = load_boxes(args, batch, first, boxes, shared);
      for (int g = 0; g < count; ++g) {
        const uint32_t word = __ballot_sync(kFullWarp, shared[g].holds(p.x, p.y, p.z));
        if (threadIdx.x % 32 == 0 && i < args.points.rows) out[(first + g) * words] = word;
      }
    }
  }
}

// One block per kPointsPerBlock points: writes how many of them lie in each box into partial
// [batches, blocks, boxes].
template <class T>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ PointsInBoxesArgs args, int32_t* partial) {
  __shared__ PointBox<T> shared[kBoxesAtOnce];
  __shared__ uint32_t counts[kThreads / 32][kBoxesAtOnce];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t begin = int64_t{blockIdx.x} * kPointsPerBlock + threadIdx.x;
  for (int64_t batch = blockIdx.y; batch < args.batches; batch += gridDim.y) {
    const int64_t boxes = args.box_count(batch), points = args.point_count(batch);
    Point<T> p[kPointsPerThread];
#pragma unroll
    for (int k = 0; k < kPointsPerThread; ++k) {
      p[k] = load_point<T>(args, batch, begin + k * kThreads, points);
    }
    int32_t* const out = partial + (batch * gridDim.x + blockIdx.x) * args.boxes.rows;
    for (int64_t first = 0; first < boxes; first += kBoxesAtOnce) {
      const int count = load_boxes(args, batch, first, boxes, shared);
      for (int g = 0; g < count; ++g) {
        uint32_t inside = 0;
#pragma unroll
        for (int k = 0; k < kPointsPerThread; ++k) {
          inside += shared[g].holds(p[k].x, p[k].y, p[k].z);
        }
        inside = warp_sum(inside);
        if (lane == 0) counts[warp][g] = inside;
      }
      __syncthreads();
      for (int g = threadIdx.x; g < count; g += kThreads) {
        uint32_t sum = 0;
        for (int w = 0; w < kThreads / 32; ++w) sum += counts[w][g];
        out[first + g] = static_cast<int32_t>(sum);
      }
    }
  }
}

// One warp per box: adds up the partial counts of all blocks.
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ PointsInBoxesArgs args, const int32_t* partial,
               int64_t blocks) {
  const int lane = threadIdx.x % 32;
  const int64_t rows = args.batches * args.boxes.rows;
  for (int64_t i = global_thread() / 32; i < rows; i += global_stride() / 32) {
    const int64_t batch = i / args.boxes.rows, g = i % args.boxes.rows;
    uint32_t sum = 0;
    if (g < args.box_count(batch)) {
      for (int64_t k = lane; k < blocks; k += 32) {
        sum += static_cast<uint32_t>(partial[(batch * blocks + k) * args.boxes.rows + g]);
      }
    }
    sum = warp_sum(sum);
    if (lane == 0) static_cast<int32_t*>(args.out)[i] = static_cast<int32_t>(sum);
  }
}

int64_t count_blocks(const PointsInBoxesArgs& args) {
  return ceil_div(args.points.rows, kPointsPerBlock);
}

template <class T>
cudaError_t launch_typed(const PointsInBoxesArgs& args, void* memory, const CudaContext& context) {
  const unsigned batches = grid_y(args.batches);
  if (args.mode == PointsInBoxesMode::kCount) {
    if (args.batches * args.boxes.rows == 0) return cudaSuccess;
    Workspace workspace(memory);
    const int64_t blocks = count_blocks(args);
    int32_t* const partial = workspace.take<int32_t>(args.batches * blocks * args.boxes.rows);
    if (blocks > 0) {
      TORCHVOX_CUDA_CHECK(launch_blocks(count_kernel<T>,
                                        dim3(static_cast<unsigned>(blocks), batches), kThreads,
                                        context.stream, args, partial));
    }
    const unsigned sums = blocks_for(args.batches * args.boxes.rows, kThreads / 32, context.target);
    return launch_blocks(sum_kernel, sums, kThreads, context.stream, args, partial, blocks);
  }
  if (args.batches * args.points.rows == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.points.rows, kThreads)), batches);
  if (args.mode == PointsInBoxesMode::kIndex) {
    return launch_blocks(index_kernel<T>, grid, kThreads, context.stream, args);
  }
  if (args.boxes.rows == 0) return cudaSuccess;
  if (args.mode == PointsInBoxesMode::kBits) {
    return launch_blocks(bits_kernel<T>, grid, kThreads, context.stream, args);
  }
  return launch_blocks(mask_kernel<T>, grid, kThreads, context.stream, args);
}

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

int64_t workspace_bytes_cuda(const PointsInBoxesArgs& args, const Target&) {
  Workspace workspace;
  if (args.mode == PointsInBoxesMode::kCount) {
    workspace.take<int32_t>(args.batches * count_blocks(args) * args.boxes.rows);
  }
  return workspace.bytes();
}

cudaError_t launch(const PointsInBoxesArgs& args, void* memory, const CudaContext& context) {
  return args.dtype == DType::kDouble ? launch_typed<double>(args, memory, context)
                                      : launch_typed<float>(args, memory, context);
}

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
