// SPDX-License-Identifier: Apache-2.0
//
// The blocks that share a cloud. The first leads: it tells the others which samples to measure from
// and which points it wants next, and takes the next samples out of those alone.
#pragma once

#include "csrc/kernels/sampling/fps/kernels.cuh"
#include "csrc/kernels/sampling/fps/tiles.cuh"

namespace torchvox {

// Shared memory of a block of the lazy kernel, besides its boxes.
template <int kThreads, int kPoints>
struct LazyShared {
  static constexpr int kPool = kThreads * kPoints;
  static constexpr int kBuckets = 256;
  static_assert(kPool <= kLazyPool);
  FpsTiles tiles;
  FpsWindow<2, kLazyRoom> window;
  uint32_t pool[kPool];  // positions
  uint16_t lists[kThreads / 32][FpsTiles::kListed];
  uint32_t bucket[kBuckets];
  uint32_t total;  // points found
  int best;  // bits of the largest dist2 left
  uint32_t at;
};

template <int kThreads, int kPoints>
struct FpsCrew {
  using Shared = LazyShared<kThreads, kPoints>;
  Shared& shared;
  FpsTeam* const team;
  const unsigned others;  // blocks besides the leader
  unsigned steps = 0;

  // For the leader: starts a step of all blocks. They measure from the `count` samples in shared
  // memory and look for the points with bits >= limit and code <= top_code.
  __device__ void ask(int count, int limit, uint32_t top_code) {
    ++steps;
    if (others == 0) {
      if (count >= 0) work(count, limit, top_code);
      return;
    }
    for (int r = threadIdx.x; r < count; r += kThreads) team->samples[r] = shared.window.sample[r];
    if (threadIdx.x == 0) {
      team->step = {count, limit, top_code};
      team->total = 0;
      team->best = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      *static_cast<volatile unsigned*>(&team->asked) = steps;
    }
    if (count >= 0 && shared.tiles.groups > 0) work(count, limit, top_code);
  }
  // For the leader: ends the step. Leaves the positions of the points in `pool`, if they are no
  // more than that holds, their number in `total`, the largest dist2 in `best`.
  __device__ void answer() {
    if (others == 0) return;
    if (threadIdx.x == 0) {
      const volatile unsigned* const answered = &team->answered;
      while (*answered != steps * others) {
      }
      __threadfence();
    }
    __syncthreads();
    // Read without waiting for their number.
    for (int k = threadIdx.x; k < Shared::kPool; k += kThreads) {
      shared.pool[k] = __ldcg(&team->pool[k]);
    }
    if (threadIdx.x == 0) {
      shared.total = __ldcg(&team->total);
      shared.best = __ldcg(&team->best);
    }
    __syncthreads();
  }
  // For the others: works until the end.
  __device__ void follow() {
    while (true) {
      ++steps;
      if (threadIdx.x == 0) {
        const volatile unsigned* const asked = &team->asked;
        while (*asked != steps) __nanosleep(20);
        __threadfence();
      }
      __syncthreads();
      const int4 step = __ldcg(reinterpret_cast<const int4*>(&team->step));
      for (int r = threadIdx.x; r < kLazyRoom; r += kThreads) {
        shared.window.sample[r] = __ldcg(&team->samples[r]);  // without waiting for their number
      }
      if (step.x < 0) return;
      work(step.x, step.y, static_cast<uint32_t>(step.z));
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&team->answered, 1);
      }
    }
  }

 private:
  __device__ void work(int count, int limit, uint32_t top_code) {
    const unsigned lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
      shared.total = 0;
      shared.best = 0;
    }
    __syncthreads();
    int best = 0;
    for (uint32_t i = threadIdx.x / 32; i < shared.tiles.groups; i += kThreads / 32) {
      const int mine = shared.tiles.measure_group(i, shared.window.sample, count,
                                                  shared.lists[threadIdx.x / 32]);
      best = max(best, mine);
      shared.tiles.each_above(i, mine, limit, top_code, [&](uint32_t r, unsigned chosen) {
        uint32_t at = 0;
        if (lane == 0) at = atomicAdd(&shared.total, __popc(chosen));
        at = __shfl_sync(kFullWarp, at, 0) + __popc(chosen & ((1u << lane) - 1));
        if ((chosen >> lane & 1) && at < Shared::kPool) shared.pool[at] = r;
      });
    }
    best = warp_max_signed(best);
    if (lane == 0 && best > 0) atomicMax(&shared.best, best);
    __syncthreads();
    if (others == 0) return;
    const uint32_t total = shared.total;
    if (threadIdx.x == 0) {
      if (shared.best > 0) atomicMax(&team->best, shared.best);
      if (total > 0) shared.at = atomicAdd(&team->total, total);
    }
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < min(total, uint32_t{Shared::kPool}); k += kThreads) {
      if (shared.at + k < Shared::kPool) team->pool[shared.at + k] = shared.pool[k];
    }
    __syncthreads();
  }
};

// Brings the `total` positions of the pool into rough order: neighbours in space come close.
template <int kThreads, int kPoints>
__device__ __forceinline__ void order_pool(LazyShared<kThreads, kPoints>& shared, uint32_t total,
                                           uint32_t points) {
  constexpr uint32_t kBuckets = LazyShared<kThreads, kPoints>::kBuckets;
  for (uint32_t b = threadIdx.x; b < kBuckets; b += kThreads) shared.bucket[b] = 0;
  __syncthreads();
  uint32_t at[kPoints], bucket[kPoints], rank[kPoints];
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t k = threadIdx.x + j * kThreads;
    if (k >= total) continue;
    at[j] = min(shared.pool[k], points - 1);  // clouds that overlap
    bucket[j] = static_cast<uint32_t>(uint64_t{at[j]} * kBuckets / points);
    rank[j] = atomicAdd(&shared.bucket[bucket[j]], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    constexpr uint32_t kEach = kBuckets / 32;
    uint32_t sum = 0;
    for (uint32_t b = 0; b < kEach; ++b) sum += shared.bucket[threadIdx.x * kEach + b];
    uint32_t before = sum;
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(kFullWarp, before, step);
      if (static_cast<int>(threadIdx.x) >= step) before += other;
    }
    before -= sum;
    for (uint32_t b = 0; b < kEach; ++b) {
      const uint32_t here = shared.bucket[threadIdx.x * kEach + b];
      shared.bucket[threadIdx.x * kEach + b] = before;
      before += here;
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    if (threadIdx.x + j * kThreads < total) shared.pool[shared.bucket[bucket[j]] + rank[j]] = at[j];
  }
  __syncthreads();
}

// Deals the gathered points to the warps in runs, which keeps the box of a warp's points small;
// gives that box.
template <int kThreads, int kPoints>
__device__ __forceinline__ FpsBox load_pool(const FpsTiles& tiles, const uint32_t* positions,
                                            uint32_t total, uint32_t last_code,
                                            FpsPool<kPoints>& pool) {
  constexpr uint32_t kWarps = kThreads / 32;
  const uint32_t per_warp = (total + kWarps - 1) / kWarps;
  const uint32_t begin = threadIdx.x / 32 * per_warp, end = min(begin + per_warp, total);
  FpsBox box = FpsBox::empty();
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t k = begin + 32 * j + threadIdx.x % 32;
    float4 p = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    pool.d[j] = -1.0f;
    if (k < end) {
      p = tiles.points[positions[k]];
      pool.d[j] = __ldcg(&tiles.dist2s[positions[k]]);  // another block may have written it
      box.extend(p);
    }
    pool.a[j] = p.x;
    pool.b[j] = p.y;
    pool.c[j] = p.z;
    pool.code[j] = min(__float_as_uint(p.w), last_code);  // above it: clouds that overlap
  }
  return warp_box(box);
}

}  // namespace torchvox
