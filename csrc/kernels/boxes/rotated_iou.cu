// SPDX-License-Identifier: Apache-2.0
//
// Rotated IoU and its gradient on the GPU, of a matrix or of pairs: no atomics. place_boxes: a warp
// compares one try, or one candidate of a group, with the scene at a time, one box per lane; scene
// and candidates stay in the caches.
#include <algorithm>

#include "csrc/kernels/boxes/place_boxes.h"
#include "csrc/kernels/boxes/rotated_iou.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"

namespace torchvox {
inline constexpr int kPairTile = 64;
inline constexpr int kPairTileThreads = 256;
inline constexpr int kPairRowsPerThread = kPairTile * kPairTile / kPairTileThreads;

// A list, in shared memory, of the pairs that pass the cheap test of circles. They are few and
// scattered over the lanes: from the list whole warps do the long test.
struct PairQueue {
  uint16_t pairs[kPairTile * kPairTile];  // 64 * row + column, in any order
  int size;

  // By all threads, with a barrier before the first push.
  __device__ __forceinline__ void clear() {
    if (threadIdx.x == 0) size = 0;
  }
  // By whole warps: bit k of `near` stands for the pair (first_row + k, column).
  __device__ __forceinline__ void push(uint32_t near, int first_row, int column) {
    const int lane = threadIdx.x & 31, mine = __popc(near);
    const int before = warp_inclusive(mine);
    int base = 0;
    if (lane == 31 && before > 0) base = atomicAdd(&size, before);
    int at = __shfl_sync(~0u, base, 31) + before - mine;
    for (; near != 0; near &= near - 1) {
      pairs[at++] = static_cast<uint16_t>((first_row + __ffs(near) - 1) * kPairTile + column);
    }
  }
  // body(row, column) for every pair; a barrier after the last push.
  template <class Body>
  __device__ __forceinline__ void each(const Body& body) const {
    for (int k = threadIdx.x; k < size; k += kPairTileThreads) {
      body(pairs[k] / kPairTile, pairs[k] % kPairTile);
    }
  }
};

namespace {

constexpr int kRowWarps = 4;
constexpr int kPairThreads = 128;

template <class T>
struct IouTile {
  Box3<T> a[kPairTile], b[kPairTile];
  PairQueue queue;
};

__device__ __forceinline__ int tile_size(int64_t left) {
  return left < kPairTile ? static_cast<int>(left) : kPairTile;
}

// One block per tile of 64 x 64 pairs: reads 64 boxes of a and of b, writes their overlaps.
template <class T>
__global__ void __launch_bounds__(kPairTileThreads)
    matrix_kernel(const __grid_constant__ RotatedIouArgs args, int row_tiles) {
  __shared__ IouTile<T> tile;
  const int64_t columns = args.b.rows;
  const int64_t column_begin = int64_t{blockIdx.x} * kPairTile;
  for (int64_t part = blockIdx.y; part < args.batches * row_tiles; part += gridDim.y) {
    const int64_t batch = part / row_tiles, row_begin = part % row_tiles * kPairTile;
    const int rows = tile_size(args.a.rows - row_begin), wide = tile_size(columns - column_begin);
    const int slot = threadIdx.x % kPairTile;
    if (threadIdx.x < kPairTile) {
      if (slot < rows) tile.a[slot] = load_box<T>(args, args.a, batch, row_begin + slot);
    } else if (threadIdx.x < 2 * kPairTile) {
      if (slot < wide) tile.b[slot] = load_box<T>(args, args.b, batch, column_begin + slot);
    }
    tile.queue.clear();
    __syncthreads();
    T* const out =
        static_cast<T*>(args.iou) + (batch * args.a.rows + row_begin) * columns + column_begin;
    const int first_row = threadIdx.x / kPairTile * kPairRowsPerThread;
    uint32_t near = 0;
    for (int k = 0; k < kPairRowsPerThread && slot < wide && first_row + k < rows; ++k) {
      const bool meets = circles_meet(tile.a[first_row + k].bev, tile.b[slot].bev);
      near |= static_cast<uint32_t>(meets) << k;
      if (!meets) out[(first_row + k) * columns + slot] = T(0);
    }
    tile.queue.push(near, first_row, slot);
    __syncthreads();
    tile.queue.each([&](int row, int column) {
      out[row * columns + column] =
          pair_overlap(tile.a[row], tile.b[column], args.is_volume, args.metric);
    });
    __syncthreads();
  }
}

// One warp per box of a, then of b: reads the boxes of the other side and the gradient of its row
// or column, of which a lane sums every 32nd pair; writes the gradient of its box.
template <class T>
__global__ void __launch_bounds__(32 * kRowWarps)
    matrix_gradient_kernel(const __grid_constant__ RotatedIouBackwardArgs args) {
  const RotatedIouArgs& forward = args.forward;
  const int64_t of_a = args.grad_a ? forward.batches * forward.a.rows : 0;
  const int64_t of_b = args.grad_b ? forward.batches * forward.b.rows : 0;
  const int lane = threadIdx.x % 32;
  for (int64_t i = global_thread() / 32; i < of_a + of_b; i += global_stride() / 32) {
    const bool is_a = i < of_a;
    const int64_t at = is_a ? i : i - of_a, rows = is_a ? forward.a.rows : forward.b.rows;
    const GradientRow<T> row{args, is_a, at / rows, at % rows};
    const Box3<T> mine = load_box<T>(forward, row.own(), row.batch, row.row);
    BoxGradient<T> sum{};
    for (int64_t k = lane; k < row.others().rows; k += kPartialSums) row.add(mine, k, sum);
    for (int step = kPartialSums / 2; step > 0; step /= 2) {
      for (int c = 0; c < kBoxColumns; ++c) sum.at[c] += __shfl_down_sync(~0u, sum.at[c], step);
    }
    if (lane == 0) row.write(sum);
  }
}

template <class T>
cudaError_t launch_typed(const RotatedIouArgs& args, const CudaContext& context) {
  if (args.is_paired) {
    return launch_elements<pair_element<T>, kPairThreads>(args, args.batches * args.a.rows,
                                                          context);
  }
  if (args.batches * args.a.rows * args.b.rows == 0) return cudaSuccess;
  const int64_t row_tiles = ceil_div<int64_t>(args.a.rows, kPairTile);
  const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(args.b.rows, kPairTile)),
                  grid_y(args.batches * row_tiles));
  return launch_blocks(matrix_kernel<T>, grid, kPairTileThreads, context.stream, args,
                       static_cast<int>(row_tiles));
}

template <class T>
cudaError_t launch_gradient(const RotatedIouBackwardArgs& args, const CudaContext& context) {
  const RotatedIouArgs& forward = args.forward;
  if (forward.is_paired) {
    return launch_elements<pair_gradient_element<T>, kPairThreads>(
        args, forward.batches * forward.a.rows, context);
  }
  const int64_t rows =
      forward.batches * ((args.grad_a ? forward.a.rows : 0) + (args.grad_b ? forward.b.rows : 0));
  if (rows == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(rows, kRowWarps, context.target);
  return launch_blocks(matrix_gradient_kernel<T>, blocks, 32 * kRowWarps, context.stream, args);
}

constexpr int kSceneThreads = 512;

// One block per scene: reads its boxes and candidates and writes the choices.
__global__ void __launch_bounds__(kSceneThreads)
    place_kernel(const __grid_constant__ PlaceBoxesArgs args, const PlaceScratch scratch) {
  __shared__ int32_t room;
  const Team team{static_cast<int>(threadIdx.x), kSceneThreads, 32, &room};
  for (int64_t batch = blockIdx.x; batch < args.batches; batch += gridDim.x) {
    ScenePlacer(args, scratch, batch, team).run();
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const RotatedIouArgs&, const Target&) { return 0; }

cudaError_t launch(const RotatedIouArgs& args, void*, const CudaContext& context) {
  return args.dtype == DType::kDouble ? launch_typed<double>(args, context)
                                      : launch_typed<float>(args, context);
}

cudaError_t launch(const RotatedIouBackwardArgs& args, void*, const CudaContext& context) {
  return args.forward.dtype == DType::kDouble ? launch_gradient<double>(args, context)
                                              : launch_gradient<float>(args, context);
}

cudaError_t launch(const PlaceBoxesArgs& args, void* memory, const CudaContext& context) {
  if (args.batches * args.count == 0) return cudaSuccess;
  const auto scratch = carve<PlaceScratch>(memory, args);
  const unsigned blocks = blocks_for(args.batches, 1, context.target);
  return launch_blocks(place_kernel, blocks, kSceneThreads, context.stream, args, scratch);
}

}  // namespace torchvox
