// SPDX-License-Identifier: Apache-2.0
//
// center_targets on the GPU: slots, by rising index of the boxes, then cells, each written once.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/targets/center_targets.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
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

}  // namespace

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

}  // namespace torchvox
