// SPDX-License-Identifier: Apache-2.0
//
// anchor_targets on the GPU, in two passes of one kernel, best and assign. An anchor stays in
// registers for all samples of its block, which lists the boxes near it, usually few, by rising
// index. Best overlaps are raised by integer atomics on their bits, and positives are added per
// block; the order does not matter to either. center_targets: slots, by rising index of the boxes,
// then cells, each written once. anchor_loss and its gradient read the maps once each.
#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/targets/anchor_loss.h"
#include "csrc/kernels/targets/anchor_targets.h"
#include "csrc/kernels/targets/center_targets.h"

namespace torchvox {
namespace {

constexpr int kThreads = kTreeValues;
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

constexpr int kTileWidth = 32, kTileHeight = kThreads / kTileWidth;

// One warp per task of a sample: reads all boxes of the sample, 32 at a time, and writes the task's
// slots and count. A box has one task, whose warp writes its CenterObject; the warp of task 0
// writes those of boxes without a task.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const __grid_constant__ CenterTargetsArgs args, const CenterScratch scratch) {
  const int lane = threadIdx.x % 32;
  const int64_t warps = args.targets.batches * args.tasks, rows = args.targets.rows();
  for (int64_t warp = global_thread() / 32; warp < warps; warp += global_stride() / 32) {
    const int64_t batch = warp / args.tasks, task = warp % args.tasks;
    const int64_t slots = warp * args.max_objects;
    int64_t kept = 0;
    for (int64_t first = 0; first < rows; first += 32) {
      const int64_t g = first + lane;
      CenterObject object = {0, 0, 0, -1, 0};
      if (g < rows) object = center_object(args, batch, g);
      const bool is_own = object.label >= 0 ? args.task[object.label] == task : task == 0;
      const bool takes_slot = is_own && object.label >= 0 && !object.ignored;
      const unsigned takers = __ballot_sync(kFullWarp, takes_slot);
      const int64_t slot = kept + __popc(takers & lanes_below(lane));
      if (takes_slot && slot < args.max_objects) {
        args.cell[slots + slot] = static_cast<int32_t>(object.y * args.width + object.x);
        args.box[slots + slot] = static_cast<int32_t>(g);
      } else if (takes_slot) {
        object.label = -1;
      }
      if (is_own && g < rows) scratch.object[batch * rows + g] = object;
      kept += __popc(takers);
    }
    if (kept > args.max_objects) kept = args.max_objects;
    for (int64_t slot = kept + lane; slot < args.max_objects; slot += 32) {
      args.cell[slots + slot] = -1;
      args.box[slots + slot] = -1;
    }
    if (lane == 0) args.count[warp] = static_cast<int32_t>(kept);
  }
}

// One block per tile of 32 x 8 cells, one thread per cell, planes (class of a sample) by
// blockIdx.y. Reads the objects of the sample, lists those of the class that reach into the tile,
// and writes the heatmap.
__global__ void __launch_bounds__(kThreads)
    draw_kernel(const __grid_constant__ CenterTargetsArgs args, const CenterScratch scratch,
                int64_t tiles_across) {
  __shared__ CenterObject near[kThreads];
  __shared__ int count;
  const int64_t left = blockIdx.x % tiles_across * kTileWidth;
  const int64_t top = blockIdx.x / tiles_across * kTileHeight;
  const int64_t x = left + threadIdx.x % kTileWidth, y = top + threadIdx.x / kTileWidth;
  const int64_t rows = args.targets.rows(), planes = args.targets.batches * args.classes;
  for (int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y) {
    const CenterObject* const objects = scratch.object + plane / args.classes * rows;
    HeatCell cell;
    for (int64_t first = 0; first < rows; first += kThreads) {
      __syncthreads();  // all threads have read the last list
      if (threadIdx.x == 0) count = 0;
      __syncthreads();
      const int64_t g = first + threadIdx.x;
      if (g < rows && objects[g].label == plane % args.classes) {
        const CenterObject object = objects[g];
        // The cell of the tile that is nearest to the object's center.
        const int64_t near_x = clamp_index(object.x, left, left + kTileWidth - 1);
        const int64_t near_y = clamp_index(object.y, top, top + kTileHeight - 1);
        if (is_in_reach(object, near_x, near_y)) near[atomicAdd(&count, 1)] = object;
      }
      __syncthreads();
      for (int k = 0; k < count; ++k) cell.add(near[k], x, y);
    }
    if (x < args.width && y < args.height) {
      args.heatmap[(plane * args.height + y) * args.width + x] = cell.value();
    }
  }
}

// The sum of one value per thread by halves as in kTreeValues, in the block's first thread. Every
// thread of the block calls.
__device__ double block_sum(double value) {
  __shared__ double upper[kThreads / 2];
  const int rank = threadIdx.x;
  for (int step = kThreads / 2; step >= 32; step /= 2) {
    __syncthreads();
    if (rank >= step && rank < 2 * step) upper[rank - step] = value;
    __syncthreads();
    if (rank < step) value += upper[rank];
  }
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(kFullWarp, value, step);
  return value;
}

// One block per 256 anchors, and samples by blockIdx.y: one thread per anchor reads its values and
// calculates its terms; the block writes one sum per term and sample.
template <class M>
__global__ void __launch_bounds__(kThreads)
    terms_kernel(const __grid_constant__ AnchorLossArgs args, const LossScratch scratch) {
  const int64_t i = global_thread();
  for (int64_t batch = blockIdx.y; batch < args.batches; batch += gridDim.y) {
    AnchorTerms<compute_t<M>> terms{};
    bool positive = false;
    if (i < args.num_anchors()) {
      const AnchorPlace place(args, batch, i);
      terms = anchor_terms<M>(args, place);
      positive = place.box >= 0;
    }
    const bool any_positive = __syncthreads_or(positive);
    for (int t = 0; t < kLossTerms; ++t) {
      const double sum = t == 0 || any_positive ? block_sum(terms.at[t]) : 0.0;
      if (threadIdx.x == 0) {
        scratch.sums[(batch * kLossTerms + t) * scratch.blocks + blockIdx.x] = sum;
      }
    }
  }
}

// One block per term of a sample: adds up the sums of its blocks of anchors, level by level, and
// writes the loss. Each sum of a level overwrites values that the block has already read.
template <class M>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ AnchorLossArgs args, const LossScratch scratch) {
  for (int64_t i = blockIdx.x; i < args.batches * kLossTerms; i += gridDim.x) {
    double* const sums = scratch.sums + i * scratch.blocks;
    int64_t count = scratch.blocks;
    for (; count > 1; count = tree_blocks(count)) {
      for (int64_t block = 0; block < tree_blocks(count); ++block) {
        const int64_t at = block * kThreads + threadIdx.x;
        const double sum = block_sum(at < count ? sums[at] : 0.0);
        if (threadIdx.x == 0) sums[block] = sum;
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) write_loss<M>(args, i, count > 0 ? sums[0] : 0.0);
  }
}

// One thread per anchor, samples by blockIdx.y: reads what the loss read and writes the gradient of
// all of the anchor's values.
template <class M>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const __grid_constant__ AnchorLossBackwardArgs args) {
  const int64_t i = global_thread();
  if (i >= args.forward.num_anchors()) return;
  for (int64_t batch = blockIdx.y; batch < args.forward.batches; batch += gridDim.y) {
    anchor_gradient<M>(args, AnchorPlace(args.forward, batch, i));
  }
}

dim3 grid_of(const AnchorLossArgs& args) {
  return dim3(grid_x(tree_blocks(args.num_anchors())), grid_y(args.batches));
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

cudaError_t launch(const CenterTargetsArgs& args, void* memory, const CudaContext& context) {
  const int64_t batches = args.targets.batches;
  if (batches == 0) return cudaSuccess;
  const auto scratch = carve<CenterScratch>(memory, args);
  TORCHVOX_CUDA_CHECK(
      launch_items(place_kernel, 32 * batches * args.tasks, kThreads, context, args, scratch));
  if (args.height * args.width == 0) return cudaSuccess;
  const int64_t across = ceil_div<int64_t>(args.width, kTileWidth);
  const int64_t tiles = across * ceil_div<int64_t>(args.height, kTileHeight);
  const dim3 grid(grid_x(tiles), grid_y(batches * args.classes));
  return launch_blocks(draw_kernel, grid, kThreads, context.stream, args, scratch, across);
}

cudaError_t launch(const AnchorLossArgs& args, void* memory, const CudaContext& context) {
  if (args.batches == 0) return cudaSuccess;
  const auto scratch = carve<LossScratch>(memory, args);
  return with_point_type(args.dtype, [&](auto type) {
    using M = decltype(type);
    if (args.num_anchors() > 0) {
      TORCHVOX_CUDA_CHECK(
          launch_blocks(terms_kernel<M>, grid_of(args), kThreads, context.stream, args, scratch));
    }
    const unsigned blocks = blocks_for(args.batches * kLossTerms, 1, context.target);
    return launch_blocks(sum_kernel<M>, blocks, kThreads, context.stream, args, scratch);
  });
}

cudaError_t launch(const AnchorLossBackwardArgs& args, void*, const CudaContext& context) {
  if (args.forward.batches * args.forward.num_anchors() == 0) return cudaSuccess;
  return with_point_type(args.forward.dtype, [&](auto type) {
    return launch_blocks(gradient_kernel<decltype(type)>, grid_of(args.forward), kThreads,
                         context.stream, args);
  });
}

}  // namespace torchvox
