// SPDX-License-Identifier: Apache-2.0
//
// The launchers that furthest_point_sample.cu puts together, and their scratch memory.
#pragma once

#include "csrc/kernels/sampling/fps/furthest_point_sample.h"
#include "csrc/kernels/spatial/order.cuh"

namespace torchvox {

// One block per cloud. Clouds whose tie codes number more than `above` and at most the block's
// room.
cudaError_t launch_fps_block(const FpsArgs& args, const FpsPlan::BlockClass& block, int64_t above,
                             cudaStream_t stream);

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
  return args.points.packed ? args.points.rows : plan.clouds_at_once * args.points.rows;
}

}  // namespace torchvox
