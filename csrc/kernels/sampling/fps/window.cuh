// SPDX-License-Identifier: Apache-2.0
//
// Many samples at a time, and exactly those that one at a time would give. The `window` is every
// point whose key (dist2, then smaller tie code) is at least some K, a warp or two of them. In
// falling order of keys a window point is the next sample unless an earlier one came closer to it
// than its dist2. So all samples down to the first point that was reached and yet stays in the race
// follow from the window alone, by a few steps over bit masks; whatever lies outside has a key
// below K and only falls.
#pragma once

#include <type_traits>

#include "csrc/kernels/sampling/fps/device.cuh"

namespace torchvox {

// Shared memory of a block. A window has 32 * kWide points; samples are collected in `sample` until
// they are written out.
template <int kWide, int kSamples>
struct FpsWindow {
  static constexpr int kPoints = 32 * kWide;
  static constexpr int kRoom = kSamples;
  using Mask = std::conditional_t<kWide == 2, uint64_t, uint32_t>;  // one bit a window point

  // Who comes before a window point.
  struct alignas(16) Row {
    Mask ahead;  // those with a larger key
    Mask lowers;  // those of them that are closer to it than its dist2
    Mask below;  // those that lower it below K
    int reach;  // bits of the largest distance to one that lowers it, yet not below K
  };

  float4 point[kPoints];  // a, b, c, dist2
  uint64_t key[kPoints];
  Row row[kPoints];
  int per_warp[32];
  int count[3];  // of window points, one for every attempt in turn
  int taken;
  float4 sample[kRoom];  // a, b, c, code
  int bits[kRoom];  // of dist2 at selection time

  // One bit a lane and word, the points of word w 32 * w further on.
  __device__ __forceinline__ static Mask ballot(const bool (&bit)[kWide]) {
    Mask mask = __ballot_sync(kFullWarp, bit[0]);
    if constexpr (kWide == 2) mask |= Mask{__ballot_sync(kFullWarp, bit[1])} << 32;
    return mask;
  }
};

// Fills the rows of the `count` window points. A warp takes one of them at a time, a lane one or
// two of the others.
template <int kWide, int kRoom>
__device__ __forceinline__ void compare_window(FpsWindow<kWide, kRoom>& shared, int count,
                                               int limit) {
  using Window = FpsWindow<kWide, kRoom>;
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const float least = __int_as_float(limit);
  float4 p[kWide];
  uint64_t key[kWide];
#pragma unroll
  for (int w = 0; w < kWide; ++w) {
    p[w] = shared.point[lane + 32 * w];
    key[w] = lane + 32 * w < count ? shared.key[lane + 32 * w] : 0;  // 0: ahead of none
  }
  for (int j = threadIdx.x / 32; j < count; j += warps) {
    const float4 q = shared.point[j];
    const uint64_t q_key = shared.key[j];
    float d[kWide];
    bool ahead[kWide], lowers[kWide], below[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      d[w] = dist2(p[w].x - q.x, p[w].y - q.y, p[w].z - q.z);
      ahead[w] = key[w] > q_key;
      lowers[w] = ahead[w] && d[w] < q.w;
      below[w] = lowers[w] && d[w] < least;
    }
    typename Window::Row row{Window::ballot(ahead), Window::ballot(lowers), Window::ballot(below),
                             0};
    if (row.lowers != row.below) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) {
        if (lowers[w] && !below[w]) row.reach = max(row.reach, __float_as_int(d[w]));
      }
      row.reach = warp_max_signed(row.reach);
    }
    if (lane == 0) shared.row[j] = row;
  }
  __syncthreads();
}

// Appends the samples that follow from the window to `sample`, from `at` on; gives their number, at
// least 1. One warp, a lane one or two window points. A point is a sample when none of those that
// lower it is one, and none when one of them is: masks grow until every point is decided, in as
// many steps as the longest chain.
template <int kWide, int kRoom>
__device__ __forceinline__ int take_samples(FpsWindow<kWide, kRoom>& shared, int count, int at) {
  using Window = FpsWindow<kWide, kRoom>;
  using Mask = typename Window::Mask;
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    typename Window::Row row[kWide];
    bool valid[kWide], bit[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      valid[w] = lane + 32 * w < count;
      row[w] = shared.row[lane + 32 * w];
      if (!valid[w]) row[w].lowers = 0;
    }
    const Mask all = static_cast<Mask>(~Mask{0}) >> (Window::kPoints - count);
    Mask accepted = 0, lowered = 0;
    while ((accepted | lowered) != all) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) bit[w] = valid[w] && (row[w].lowers & ~lowered) == 0;
      accepted = Window::ballot(bit);
#pragma unroll
      for (int w = 0; w < kWide; ++w) bit[w] = (row[w].lowers & accepted) != 0;
      lowered = Window::ballot(bit);
    }
    // Lowered, and still in the window: from its new dist2 down the order is open.
    int open = 0;
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      if ((lowered >> (lane + 32 * w) & 1) && (row[w].below & accepted) == 0) {
        open = max(open, row[w].reach);
      }
    }
    open = warp_max_signed(open);
    float4 p[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      p[w] = shared.point[lane + 32 * w];
      bit[w] = (accepted >> (lane + 32 * w) & 1) && __float_as_int(p[w].w) > open;
    }
    const Mask taken = Window::ballot(bit);
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      if (!bit[w]) continue;
      const int rank = at + __popcll(row[w].ahead & taken);
      const uint32_t code = ~static_cast<uint32_t>(shared.key[lane + 32 * w]);
      shared.sample[rank] = make_float4(p[w].x, p[w].y, p[w].z, __uint_as_float(code));
      shared.bits[rank] = __float_as_int(p[w].w);
    }
    if (lane == 0) shared.taken = __popcll(taken);
  }
  __syncthreads();
  return shared.taken;
}

// Writes the collected samples to the slots [begin, end). Barriers on both sides.
template <class Window>
__device__ __forceinline__ void write_samples(const FpsArgs& args, const FpsCloud& cloud,
                                              const Window& shared, int begin, int end) {
  __syncthreads();
  for (int s = begin + static_cast<int>(threadIdx.x); s < end; s += blockDim.x) {
    // Only clouds that overlap, from offsets in disorder, can hold a code of no point.
    const uint32_t i = cloud.tie.index(__float_as_uint(shared.sample[s - begin].w));
    write_sample(args, cloud, s, i < cloud.points ? int64_t{i} : -1,
                 __int_as_float(shared.bits[s - begin]));
  }
  __syncthreads();
}

}  // namespace torchvox
