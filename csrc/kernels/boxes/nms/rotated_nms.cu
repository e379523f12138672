// SPDX-License-Identifier: Apache-2.0
//
// rotated_nms on the GPU: the argsort of the scores, then NMS. Few boxes (16,384 in one segment,
// 8,192 in each of four) are sorted by counting, in one kernel: the place of a box is the number of
// boxes before it. More boxes take radix sorts of (key, index).
#include <algorithm>

#include "csrc/kernels/boxes/nms/scratch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {
namespace {

constexpr int64_t kMostCounted = 16384;  // boxes of one segment: its pairs are compared
constexpr int kCountThreads = 512;
constexpr int kCountWarps = kCountThreads / 32;
constexpr int kBoxesPerBlock = 32;  // one per lane, in every warp
constexpr int kKeysAtOnce = 4096;
constexpr int kKeysPerWarp = kKeysAtOnce / kCountWarps;
constexpr int kThreads = 256;

bool is_counted(const RotatedNmsArgs& args) {
  const int64_t forced = nms_order_plan.value();
  if (forced != kAutomatic) return forced == 0;
  const int64_t boxes = args.nms.capacity;
  return boxes <= kMostCounted && args.nms.segments * boxes * boxes <= kMostCounted * kMostCounted;
}

// How many keys of the groups of four [begin, end) are below `limit`.
__device__ __forceinline__ uint32_t keys_below(const uint4* keys, int begin, int end,
                                               uint32_t limit) {
  uint32_t count = 0;
#pragma unroll 8
  for (int k = begin; k < end; ++k) {
    const uint4 four = keys[k];
    count += (four.x < limit) + (four.y < limit) + (four.z < limit) + (four.w < limit);
  }
  return count;
}

// How many keys of a warp's range come before the lane's own: keys of earlier boxes count if equal,
// those of later boxes do not. `block` is the place of the block's own 32 boxes relative to the
// range.
__device__ __forceinline__ uint32_t keys_before(const uint32_t* keys, int64_t block, uint32_t key) {
  const auto* const fours = reinterpret_cast<const uint4*>(keys);
  const uint32_t through = key + 1;  // cannot overflow: 0xffffffff is kLeftOut
  if (block < 0) return keys_below(fours, 0, kKeysPerWarp / 4, key);
  if (block >= kKeysPerWarp) return keys_below(fours, 0, kKeysPerWarp / 4, through);
  const int at = static_cast<int>(block), lane = threadIdx.x % 32;
  uint32_t count = keys_below(fours, 0, at / 4, through);
#pragma unroll 8
  for (int k = 0; k < kBoxesPerBlock; ++k) count += keys[at + k] < (k < lane ? through : key);
  return count + keys_below(fours, (at + kBoxesPerBlock) / 4, kKeysPerWarp / 4, key);
}

struct CountBlock {
  alignas(16) uint32_t keys[kKeysAtOnce];
  uint32_t counts[kCountWarps][32];
  uint32_t used[kCountWarps];
};

// One block per 32 boxes of a segment: reads all scores of the segment, writes the order, the boxes
// in that order and, by the first block, how many have a score.
__global__ void __launch_bounds__(kCountThreads)
    count_order_kernel(const __grid_constant__ RotatedNmsArgs args,
                       const __grid_constant__ ScoreArgsort out,
                       const __grid_constant__ NmsScratch scratch) {
  __shared__ CountBlock block;
  let_next_begin();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t box = int64_t{blockIdx.x} * kBoxesPerBlock + lane;
  const int64_t capacity = args.nms.capacity;
  for (int64_t segment = blockIdx.y; segment < args.nms.segments; segment += gridDim.y) {
    const float* const scores = args.scores + segment * capacity;
    const int64_t length = args.length(segment);
    const uint32_t key = box < length ? score_key(scores[box]) : kLeftOut;
    uint32_t count = 0, used = 0;
    for (int64_t first = 0; first < length; first += kKeysAtOnce) {
      __syncthreads();
#pragma unroll
      for (int k = threadIdx.x; k < kKeysAtOnce; k += kCountThreads) {
        const uint32_t other = first + k < length ? score_key(scores[first + k]) : kLeftOut;
        block.keys[k] = other;
        used += other != kLeftOut;
      }
      __syncthreads();
      const int mine = warp * kKeysPerWarp;
      count += keys_before(block.keys + mine, box - lane - (first + mine), key);
    }
    block.counts[warp][lane] = count;
    used = warp_sum(used);
    if (lane == 0) block.used[warp] = used;
    __syncthreads();
    if (warp == 0) {
      uint32_t place = 0;
      for (int w = 0; w < kCountWarps; ++w) place += block.counts[w][lane];
      if (key != kLeftOut) {
        out.order[segment * capacity + place] = static_cast<int32_t>(box);
        scratch.write(args.nms, segment, place, box);
      }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      uint32_t total = 0;
      for (int w = 0; w < kCountWarps; ++w) total += block.used[w];
      out.counts[segment] = static_cast<int32_t>(total);
    }
    __syncthreads();
  }
}

// One thread per box: writes its key and its index among all boxes, the input of the radix sort.
__global__ void score_keys_kernel(const __grid_constant__ RotatedNmsArgs args, uint32_t* keys,
                                  uint32_t* values) {
  const int64_t boxes = args.nms.segments * args.nms.capacity;
  for (int64_t i = global_thread(); i < boxes; i += global_stride()) {
    keys[i] = score_key(args, i / args.nms.capacity, i % args.nms.capacity);
    values[i] = static_cast<uint32_t>(i);
  }
}

// One thread per position of the order by score: writes the segment of the box there, the key of
// the second sort.
__global__ void segment_keys_kernel(int64_t capacity, int64_t boxes, uint32_t* keys,
                                    const uint32_t* values) {
  for (int64_t i = global_thread(); i < boxes; i += global_stride()) {
    keys[i] = static_cast<uint32_t>(values[i] / capacity);
  }
}

// One thread per position of the sorted boxes: writes the order, the box, and at the last box with
// a score how many there are.
__global__ void sorted_order_kernel(const __grid_constant__ RotatedNmsArgs args,
                                    const uint32_t* values, ScoreArgsort out,
                                    const __grid_constant__ NmsScratch scratch) {
  const int64_t capacity = args.nms.capacity;
  for (int64_t i = global_thread(); i < args.nms.segments * capacity; i += global_stride()) {
    const int64_t segment = i / capacity, place = i % capacity;
    const int64_t box = values[i] - segment * capacity;
    const bool used = score_key(args, segment, box) != kLeftOut;
    if (used) {
      out.order[i] = static_cast<int32_t>(box);
      scratch.write(args.nms, segment, place, box);
    }
    // Boxes without a score come last.
    const bool next_used = place + 1 < capacity &&
        score_key(args, segment, values[i + 1] - segment * capacity) != kLeftOut;
    if (used && !next_used) out.counts[segment] = static_cast<int32_t>(place + 1);
    if (place == 0 && !used) out.counts[segment] = 0;
  }
}

int64_t score_argsort_bytes(const RotatedNmsArgs& args) {
  if (is_counted(args)) return 0;
  return carved_bytes<SortBuffers>(args.nms.segments * args.nms.capacity);
}

// The argsort; it also writes the boxes in order into `scratch`.
cudaError_t launch_score_argsort(const RotatedNmsArgs& args, const ScoreArgsort& order,
                                 const NmsScratch& scratch, void* memory,
                                 const CudaContext& context) {
  const int64_t capacity = args.nms.capacity, boxes = args.nms.segments * capacity;
  if (boxes == 0) return cudaSuccess;
  if (is_counted(args)) {
    const dim3 grid(static_cast<unsigned>(ceil_div<int64_t>(capacity, kBoxesPerBlock)),
                    grid_y(args.nms.segments));
    return launch_blocks(count_order_kernel, grid, kCountThreads, context.stream, args, order,
                         scratch);
  }
  auto sort = carve<SortBuffers>(memory, boxes);
  TORCHVOX_CUDA_CHECK(launch_items(score_keys_kernel, boxes, kThreads, context, args, sort.keys[0],
                                   sort.values[0]));
  TORCHVOX_CUDA_CHECK(radix_sort(sort, boxes, 32, context.stream));
  const int bits = key_bits(args.nms.segments);
  if (bits > 0) {  // stable: the order by score stays within a segment
    TORCHVOX_CUDA_CHECK(launch_items(segment_keys_kernel, boxes, kThreads, context, capacity, boxes,
                                     sort.keys[sort.current], sort.values[sort.current]));
    TORCHVOX_CUDA_CHECK(radix_sort(sort, boxes, bits, context.stream));
  }
  return launch_items(sorted_order_kernel, boxes, kThreads, context, args,
                      sort.values[sort.current], order, scratch);
}

}  // namespace

int64_t workspace_bytes_cuda(const RotatedNmsArgs& args, const Target&) {
  Workspace workspace;
  const ScoreArgsort order(args, workspace);
  workspace.take<char>(score_argsort_bytes(args));
  const NmsScratch scratch(args.nms, workspace);
  return workspace.bytes();
}

cudaError_t launch(const RotatedNmsArgs& args, void* memory, const CudaContext& context) {
  if (args.nms.segments == 0) return cudaSuccess;
  Workspace workspace(memory);
  const ScoreArgsort order(args, workspace);
  const NmsArgs nms = order.applied_to(args.nms);
  void* const for_order = workspace.take<char>(score_argsort_bytes(args));
  const NmsScratch scratch(nms, workspace);
  TORCHVOX_CUDA_CHECK(launch_score_argsort(args, order, scratch, for_order, context));
  return launch_nms_chunks(nms, scratch, context);
}

}  // namespace torchvox
