// SPDX-License-Identifier: Apache-2.0
//
// anchor_targets on the GPU, in two passes of one kernel, best and assign. An anchor stays in
// registers for all samples of its block, which lists the boxes near it, usually few, by rising
// index. Best overlaps are raised by integer atomics on their bits, and positives are added per
// block; the order does not matter to either.
#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/targets/anchor_targets.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

// One thread per box and per sample: writes the box's rectangle, and zeros to the counters that the
// passes raise.
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ AnchorTargetsArgs args, const AnchorScratch scratch) {
  const int64_t rows = args.targets.rows(), boxes = args.targets.batches * rows;
  for (int64_t i = global_thread(); i < boxes; i += global_stride()) {
    scratch.rect[i] = target_rect(args, i / rows, i % rows);
    scratch.most[i] = 0;
  }
  for (int64_t b = global_thread(); b < args.targets.batches; b += global_stride()) {
    args.num_pos[b] = 0;
  }
}

// The bounds of one box per thread, over the block. Every thread of the block calls.
__device__ AxisBox block_bounds(const AxisBox& box) {
  __shared__ AxisBox of_warp[kThreads / 32];
  AxisBox bounds = no_bounds();
  extend(bounds, box);
  for (int step = 16; step > 0; step /= 2) {
    unite(bounds,
          {__shfl_xor_sync(kFullWarp, bounds.x0, step), __shfl_xor_sync(kFullWarp, bounds.y0, step),
           __shfl_xor_sync(kFullWarp, bounds.x1, step), __shfl_xor_sync(kFullWarp, bounds.y1, step),
           0});
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = bounds;
  __syncthreads();
  for (const AxisBox& other : of_warp) unite(bounds, other);
  return bounds;
}

// One block per 256 anchors, one thread per anchor, samples by blockIdx.y. Reads the rectangles of
// all boxes of a sample, 256 at a time, and compares those near the block with every anchor.
// Without kAssign it raises the best overlap of each box; with kAssign it reads those and writes
// `assigned` and `num_pos`.
template <bool kAssign>
__global__ void __launch_bounds__(kThreads)
    anchors_kernel(const __grid_constant__ AnchorTargetsArgs args, const AnchorScratch scratch) {
  __shared__ TargetRect near[kThreads];
  __shared__ int32_t index[kThreads];
  __shared__ uint32_t most[kThreads], sums[32];
  const int64_t i = global_thread(), rows = args.targets.rows();
  const bool exists = i < args.num_anchors();
  const AxisBox anchor =
      exists ? axis_box(args.anchors + i * kBoxColumns, args.mmdet) : AxisBox{0, 0, 0, 0, 0};
  const AnchorRule rule = args.rule[i % args.per_cell];
  const AxisBox bounds = block_bounds(anchor);
  for (int64_t batch = blockIdx.y; batch < args.targets.batches; batch += gridDim.y) {
    Assignment assignment;
    for (int64_t first = 0; first < rows; first += kThreads) {
      const int64_t g = first + threadIdx.x;
      TargetRect target{};
      bool is_near = false;
      if (g < rows) {
        target = scratch.rect[batch * rows + g];
        is_near = target.label >= 0 && reaches(target.box, bounds);
      }
      uint32_t count = 0;
      // The barriers in block_prefix() separate the last reads of the list from the next writes.
      const uint32_t place = block_prefix(uint32_t{is_near}, sums, &count);
      if (is_near) {
        near[place] = target;
        index[place] = static_cast<int32_t>(g);
        if (kAssign) most[place] = scratch.most[batch * rows + g];
      }
      __syncthreads();
      for (uint32_t k = 0; k < count; ++k) {
        const float overlap = overlap_of(rule, anchor, near[k]);
        if (kAssign) {
          assignment.consider(args, rule, overlap, near[k], index[k], most[k]);
        } else if (overlap > 0) {
          atomic_raise(&scratch.most[batch * rows + index[k]], float_bits(overlap));
        }
      }
    }
    if (!kAssign) continue;
    const int32_t result = assignment.result(args, rule);
    if (exists) args.assigned[batch * args.num_anchors() + i] = result;
    const int positives = __syncthreads_count(exists && result >= 0);
    if (threadIdx.x == 0 && positives > 0) atomicAdd(&args.num_pos[batch], positives);
  }
}

}  // namespace

cudaError_t launch(const AnchorTargetsArgs& args, void* memory, const CudaContext& context) {
  const int64_t batches = args.targets.batches;
  if (batches == 0) return cudaSuccess;
  const auto scratch = carve<AnchorScratch>(memory, args);
  TORCHVOX_CUDA_CHECK(launch_items(prepare_kernel,
                                   batches * std::max<int64_t>(args.targets.rows(), 1), kThreads,
                                   context, args, scratch));
  if (args.num_anchors() == 0) return cudaSuccess;
  // Samples are split over blocks only where the blocks of anchors are too few to fill the GPU.
  const int64_t blocks = ceil_div<int64_t>(args.num_anchors(), kThreads);
  const int64_t parts =
      ceil_div<int64_t>(int64_t{kBlocksPerMultiprocessor} * context.target.multiprocessors, blocks);
  const dim3 grid(grid_x(blocks), grid_y(std::min(batches, std::max<int64_t>(parts, 1))));
  TORCHVOX_CUDA_CHECK(
      launch_blocks(anchors_kernel<false>, grid, kThreads, context.stream, args, scratch));
  return launch_blocks(anchors_kernel<true>, grid, kThreads, context.stream, args, scratch);
}

}  // namespace torchvox
