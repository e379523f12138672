// SPDX-License-Identifier: Apache-2.0
//
// The launchers that furthest_point_sample.cu puts together, and their scratch memory.
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/sampling/fps/plan.h"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {

// One block per cloud. Clouds whose tie codes number more than `above` and at most the block's
// room.
cudaError_t launch_fps_block(const FpsArgs& args, const FpsPlan::BlockClass& block, int64_t above,
                             cudaStream_t stream);

// What is known of a cloud after one pass over it. Zero-filled memory is the neutral element: every
// field only ever grows.
struct CloudSummary {
  uint32_t low[3];  // ~ordered_bits of the smallest coordinate of a candidate, summation order
  uint32_t high[3];  // ordered_bits of the largest
  uint32_t first;  // ~code of the first candidate in tie order
  uint32_t candidates;
};

// The clouds [first_cloud, first_cloud + clouds) in an order that keeps neighbors together.
// Positions count from the first point of first_cloud.
struct SpatialOrder {
  int64_t first_cloud = 0;
  int64_t clouds = 0;
  int64_t points = 0;
  int64_t above = -1;  // clouds with at most this many tie codes are left out
  int axis_bits = 0;  // of the places on the curve, the low bits of the sorted keys
  CloudSummary* summaries = nullptr;  // [clouds]
  float4* sorted = nullptr;  // [points] a, b, c, code; the candidates of a cloud come first in it
  SortBuffers sort;

  SpatialOrder(const FpsArgs& args, const FpsPlan& plan, Workspace& workspace);
};

// Fills `summaries` and `sorted`. Speed depends on the order, results never do.
cudaError_t make_spatial_order(const FpsArgs& args, SpatialOrder& order, cudaStream_t stream);

inline constexpr int kLazyRoom = 1024;  // samples of a round
inline constexpr int kLazyBuffer = 2048;  // candidates, at most

// Where the blocks of a group meet, in global memory. The leader requests steps, the others do
// them.
struct FpsGroupState {
  struct alignas(16) Step {
    int count;  // samples to measure from; -1: the end
    int limit;  // points wanted: bits of dist2 from here up,
    uint32_t top_code;  // tie code to here
  };
  Step step;
  unsigned requested;  // steps, by the leader
  alignas(128) unsigned completed;  // steps, summed over the blocks
  uint32_t total;  // points found
  int best;  // bits of the largest dist2 left
  alignas(128) float4 samples[kLazyRoom];
  uint32_t buffer[kLazyBuffer];  // positions
};

// Of the lazy kernel, over a spatial order. The sort is over: its buffers hold the distances, and
// the marks of exhausted clouds.
struct LazyScratch {
  float* dist2;  // [points]
  uint32_t* mark;  // [points]
  FpsGroupState* state;  // [clouds]

  LazyScratch(const FpsPlan& plan, const SpatialOrder& order, Workspace& workspace);
};
cudaError_t launch_fps_lazy(const FpsArgs& args, const FpsPlan& plan, const SpatialOrder& order,
                            const LazyScratch& scratch, cudaStream_t stream);

// Points that the scratch of a large kernel holds.
inline int64_t points_at_once(const FpsArgs& args, const FpsPlan& plan) {
  return args.ragged ? args.capacity : plan.clouds_at_once * args.capacity;
}

}  // namespace torchvox
