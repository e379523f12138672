// SPDX-License-Identifier: Apache-2.0
//
// anchor_targets on the GPU. Two passes of one shape, best and assign: one thread per anchor, which
// stays in registers for all samples of the block; of each sample the boxes that reach into the
// block's bounds, few as a rule, are listed in shared memory by rising index. Anchors are read
// once a pass, and written is what is asked for; best overlaps are raised by integer atomics on
// their bits, and positives counted by block, both in any order.
#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/targets/anchor_targets.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerMultiprocessor = 8;

// The rectangle of every box, and zeros where the passes add: one thread per element.
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

// The bounds of the boxes of all threads.
__device__ AxisBox block_bounds(const AxisBox& box) {
  __shared__ AxisBox of_warp[kThreads / 32];
  AxisBox bounds = no_bounds();
  extend(bounds, box);
  for (int step = 16; step > 0; step /= 2) {
    bounds.x0 = at_most(bounds.x0, __shfl_xor_sync(kFullWarp, bounds.x0, step));
    bounds.y0 = at_most(bounds.y0, __shfl_xor_sync(kFullWarp, bounds.y0, step));
    bounds.x1 = at_least(bounds.x1, __shfl_xor_sync(kFullWarp, bounds.x1, step));
    bounds.y1 = at_least(bounds.y1, __shfl_xor_sync(kFullWarp, bounds.y1, step));
  }
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = bounds;
  __syncthreads();
  for (const AxisBox& other : of_warp) {
    bounds.x0 = at_most(bounds.x0, other.x0);
    bounds.y0 = at_most(bounds.y0, other.y0);
    bounds.x1 = at_least(bounds.x1, other.x1);
    bounds.y1 = at_least(bounds.y1, other.y1);
  }
  return bounds;
}

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
      // Its barriers stand between the last reads of the list and the next writes.
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
          assignment.meet(args, rule, overlap, near[k], index[k], most[k]);
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

int64_t workspace_bytes_cuda(const AnchorTargetsArgs& args, const Target&) {
  return carved_bytes<AnchorScratch>(args);
}

cudaError_t launch(const AnchorTargetsArgs& args, void* memory, const CudaContext& context) {
  const int64_t batches = args.targets.batches;
  if (batches == 0) return cudaSuccess;
  Workspace workspace(memory);
  const AnchorScratch scratch(args, workspace);
  TORCHVOX_CUDA_CHECK(launch_items(prepare_kernel,
                                   batches * std::max<int64_t>(args.targets.rows(), 1), kThreads,
                                   context, args, scratch));
  if (args.num_anchors() == 0) return cudaSuccess;
  // A block takes all samples, where there are blocks enough without.
  const int64_t blocks = ceil_div<int64_t>(args.num_anchors(), kThreads);
  const int64_t wanted =
      ceil_div<int64_t>(int64_t{kBlocksPerMultiprocessor} * context.target.multiprocessors, blocks);
  const dim3 grid(grid_x(blocks), grid_y(std::min(batches, std::max<int64_t>(wanted, 1))));
  TORCHVOX_CUDA_CHECK(
      launch_blocks(anchors_kernel<false>, grid, kThreads, context.stream, args, scratch));
  return launch_blocks(anchors_kernel<true>, grid, kThreads, context.stream, args, scratch);
}

}  // namespace torchvox
