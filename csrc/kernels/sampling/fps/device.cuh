// SPDX-License-Identifier: Apache-2.0
//
// Parts of the furthest-point-sampling kernels: reductions over a block, and the slots that no
// argmax fills. One block works on one cloud.
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"

namespace torchvox {

// Minimum of x over the block, for all threads; also a barrier. At most 32 warps.
__device__ __forceinline__ uint32_t block_min(uint32_t x) {
  __shared__ uint32_t per_warp[32];
  x = warp_min(x);
  if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned warps = blockDim.x / 32, lane = threadIdx.x % 32;
  x = warp_min(lane < warps ? per_warp[lane] : 0xffffffffu);
  __syncthreads();
  return x;
}

// Sum of x over the block, for all threads; also a barrier.
__device__ __forceinline__ uint32_t block_sum(uint32_t x) {
  __shared__ uint32_t per_warp[32];
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) per_warp[threadIdx.x / 32] = x;
  __syncthreads();
  const unsigned warps = blockDim.x / 32;
  x = 0;
  for (unsigned w = 0; w < warps; ++w) x += per_warp[w];
  __syncthreads();
  return x;
}

// Writes the items 0 .. count - 1 for which point_of returns a point (not -1) to the slots from s
// on, in item order, with dist2 0; returns the slot after the last. Called by the whole block.
template <class PointOf>
__device__ int64_t append_in_order(const FpsArgs& args, const FpsCloud& cloud, int64_t s,
                                   uint32_t count, PointOf point_of) {
  __shared__ uint32_t per_warp[32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  for (int64_t begin = 0; begin < count && s < cloud.samples; begin += blockDim.x) {
    const int64_t item = begin + threadIdx.x;
    const int64_t i = item < count ? point_of(static_cast<uint32_t>(item)) : -1;
    const unsigned chosen = __ballot_sync(kFullWarp, i >= 0);
    if (lane == 0) per_warp[warp] = __popc(chosen);
    __syncthreads();
    int64_t at = s + __popc(chosen & lanes_below(lane));
    for (unsigned w = 0; w < warps; ++w) {
      if (w < warp) at += per_warp[w];
      s += per_warp[w];
    }
    if (i >= 0 && at < cloud.samples) write_sample(args, cloud, at, i, 0.0f);
    __syncthreads();
  }
  return s < cloud.samples ? s : cloud.samples;
}

// When no candidate is left at a distance above 0: fills the slots from s on by the rule for
// exhausted clouds. `first` is the first candidate in tie order, or -1; `mark` has room for every
// point of the cloud. Called by the whole block, which has written the slots before s.
static __device__ __noinline__ void finish_exhausted(const FpsArgs& args, const FpsCloud& cloud,
                                                     int64_t s, int64_t first, uint32_t* mark) {
  __syncthreads();
  if (args.repeat) {
    for (int64_t j = s + threadIdx.x; j < cloud.samples; j += blockDim.x) {
      write_sample(args, cloud, j, first < 0 ? 0 : first, 0.0f);
    }
    return;
  }
  for (uint32_t i = threadIdx.x; i < cloud.points; i += blockDim.x) mark[i] = 0;
  __syncthreads();
  for (int64_t j = threadIdx.x; j < s; j += blockDim.x) {
    const int64_t i = args.idx[cloud.slot + j] - cloud.index_base;
    if (i >= 0 && i < cloud.points) mark[i] = 1;
  }
  __syncthreads();
  s = append_in_order(args, cloud, s, cloud.tie.space(), [&](uint32_t code) -> int64_t {
    const uint32_t i = cloud.tie.index(code);
    return i < cloud.points && !mark[i] && classify(args, cloud, i) == PointClass::kCandidate
        ? int64_t{i}
        : -1;
  });
  if (args.nonfinite_last) {
    s = append_in_order(args, cloud, s, cloud.points, [&](uint32_t i) -> int64_t {
      return !mark[i] && classify(args, cloud, i) == PointClass::kNonFinite ? int64_t{i} : -1;
    });
  }
  for (int64_t j = s + threadIdx.x; j < cloud.samples; j += blockDim.x) {
    write_sample(args, cloud, j, -1, 0.0f);
  }
}

// Fills the slots after the cloud's own number of samples.
__device__ __forceinline__ void fill_unused(const FpsArgs& args, const FpsCloud& cloud) {
  for (int64_t j = cloud.samples + threadIdx.x; j < cloud.slots; j += blockDim.x) {
    write_sample(args, cloud, j, -1, 0.0f);
  }
}

// Start slot s: thread 0 writes it; returns the point in every thread, or -1 if there is none to
// measure from. `first` as above; `cursor` carries over from slot to slot. Called by the whole
// block.
__device__ __forceinline__ int64_t take_start(const FpsArgs& args, const FpsCloud& cloud, int64_t s,
                                              int64_t first, uint32_t& cursor) {
  int64_t i = given_start(args, cloud, s);
  if (i < 0) i = first;
  if (threadIdx.x == 0) {
    const bool resolved = i >= 0;
    const int64_t written = resolved ? i : start_without_candidates(args, cloud, cursor);
    write_sample(args, cloud, s, written, start_dist2(args, written, resolved));
  }
  return i;
}

}  // namespace torchvox
