// SPDX-License-Identifier: Apache-2.0
//
// The launchers that furthest_point_sample.cu combines, and their scratch memory.
#pragma once

#include "csrc/kernels/sampling/fps/furthest_point_sample.h"
#include "csrc/kernels/spatial/order.cuh"

namespace torchvox {

// One block per cloud, for clouds with more than `above` tie codes and at most the room of the
// block.
cudaError_t launch_fps_block(const FpsArgs& args, const FpsPlan::BlockClass& block, int64_t above,
                             cudaStream_t stream);

inline constexpr int kLazyRoom = 1024;  // samples of a round, at most
inline constexpr int kLazyBuffer = 2048;  // candidates, at most

// The state that the blocks of a group share, in global memory. The leader requests steps, the
// others do them.
struct FpsGroupState {
  struct alignas(16) Step {
    int count;  // samples to measure from; -1: the end
    int limit;  // collects points with at least these bits of dist2
    uint32_t top_code;  // and at most this tie code
  };
  Step step;
  unsigned requested;  // steps, by the leader
  alignas(128) unsigned completed;  // steps, summed over the blocks
  uint32_t total;  // points collected
  int best;  // bits of the largest dist2
  alignas(128) float4 samples[kLazyRoom];
  uint32_t buffer[kLazyBuffer];  // positions
};

// Scratch memory of the lazy kernel. It reuses the buffers of the spatial order's sort, which is
// over, for the distances and the marks of exhausted clouds.
struct LazyScratch {
  float* dist2;  // [points]
  uint32_t* mark;  // [points]
  FpsGroupState* state;  // [clouds]

  LazyScratch(const FpsPlan& plan, const SpatialOrder& order, Workspace& workspace);
};
cudaError_t launch_fps_lazy(const FpsArgs& args, const FpsPlan& plan, const SpatialOrder& order,
                            const LazyScratch& scratch, cudaStream_t stream);

// Points for which a large kernel has scratch memory.
inline int64_t points_at_once(const FpsArgs& args, const FpsPlan& plan) {
  return args.points.packed ? args.points.rows : plan.clouds_at_once * args.points.rows;
}

}  // namespace torchvox
