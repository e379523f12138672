// SPDX-License-Identifier: Apache-2.0
//
// A cloud in spatial order, cut into tiles with a box and a largest dist2 each, and the tiles into
// groups of 32. Points and distances lie in global memory, which L2 holds, boxes in shared memory.
#pragma once

#include "csrc/kernels/sampling/fps_window.cuh"

namespace torchvox {

struct LazyScratch {
  const float4* sorted;
  float* dist2;
  uint32_t* mark;
};

struct FpsBox {
  float low_a, low_b, low_c, high_a, high_b, high_c;

  // At most the dist2 that any point in the box has to q, rounding included.
  __device__ __forceinline__ float bound(const float4& q) const {
    return dist2(gap(low_a, high_a, q.x), gap(low_b, high_b, q.y), gap(low_c, high_c, q.z));
  }
};

// Smallest box around those of a warp's lanes.
__device__ __forceinline__ FpsBox warp_box(const FpsBox& box) {
  return {from_ordered_bits(warp_min(ordered_bits(box.low_a))),
          from_ordered_bits(warp_min(ordered_bits(box.low_b))),
          from_ordered_bits(warp_min(ordered_bits(box.low_c))),
          from_ordered_bits(warp_max(ordered_bits(box.high_a))),
          from_ordered_bits(warp_max(ordered_bits(box.high_b))),
          from_ordered_bits(warp_max(ordered_bits(box.high_c)))};
}

__device__ __forceinline__ FpsBox empty_box() {
  const float infinity = __int_as_float(0x7f800000);
  return {infinity, infinity, infinity, -infinity, -infinity, -infinity};
}

__device__ __forceinline__ void extend(FpsBox& box, const float4& p) {
  box.low_a = fminf(box.low_a, p.x);
  box.low_b = fminf(box.low_b, p.y);
  box.low_c = fminf(box.low_c, p.z);
  box.high_a = fmaxf(box.high_a, p.x);
  box.high_b = fmaxf(box.high_b, p.y);
  box.high_c = fmaxf(box.high_c, p.z);
}

struct FpsTiles {
  const float4* points;  // [count] a, b, c, code
  float* dist2s;  // [count]
  uint32_t count;
  uint32_t tile;  // points of one
  uint32_t groups;
  const uint32_t room;  // tiles that fit the shared memory, a multiple of 32
  float* const corners;  // [6][room]
  float* const group_corners;  // [6][room / 32]
  int* const top;  // [room] bits of the largest dist2
  uint32_t* const found;  // [room / 32] pool points of a group

  __device__ FpsTiles(float* memory, uint32_t room)
      : room(room),
        corners(memory),
        group_corners(corners + 6 * room),
        top(reinterpret_cast<int*>(group_corners + 6 * (room / 32))),
        found(reinterpret_cast<uint32_t*>(top + room)) {}
  static size_t bytes(uint32_t room) { return sizeof(float) * (7 * room + 7 * (room / 32)); }

  __device__ static FpsBox box_at(const float* corners, uint32_t stride, uint32_t i) {
    return {corners[i],
            corners[i + stride],
            corners[i + 2 * stride],
            corners[i + 3 * stride],
            corners[i + 4 * stride],
            corners[i + 5 * stride]};
  }
  __device__ static void put_box(float* corners, uint32_t stride, uint32_t i, const FpsBox& box) {
    corners[i] = box.low_a;
    corners[i + stride] = box.low_b;
    corners[i + 2 * stride] = box.low_c;
    corners[i + 3 * stride] = box.high_a;
    corners[i + 4 * stride] = box.high_b;
    corners[i + 5 * stride] = box.high_c;
  }

  // Boxes of all tiles, one warp each; every distance `initial`. Begins and ends for the block.
  __device__ void build(uint32_t smallest_tile, float initial) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    tile = smallest_tile;
    while (uint64_t{tile} * room < count) tile *= 2;
    groups = static_cast<uint32_t>((uint64_t{count} + 32 * tile - 1) / (32 * tile));
    for (uint32_t t = warp; t < groups * 32; t += warps) {
      const uint32_t begin = min(t * tile, count), end = min(begin + tile, count);
      FpsBox box = empty_box();
      for (uint32_t r = begin + lane; r < end; r += 32) {
        extend(box, points[r]);
        dist2s[r] = initial;
      }
      box = warp_box(box);
      if (lane == 0) {
        put_box(corners, room, t, box);
        top[t] = __float_as_int(begin < end ? initial : -1.0f);
      }
    }
    __syncthreads();
    for (uint32_t g = warp; g < groups; g += warps) {
      const FpsBox box = warp_box(box_at(corners, room, g * 32 + lane));
      if (lane == 0) put_box(group_corners, room / 32, g, box);
    }
    __syncthreads();
  }

  // Largest bits among the tiles of a warp's lanes.
  __device__ int best() const {
    int largest = -1;
    for (uint32_t t = threadIdx.x; t < groups * 32; t += blockDim.x) largest = max(largest, top[t]);
    return warp_max_signed(largest);
  }

  // Lowers every distance to the nearest of `samples`. A warp takes groups: first one lane a sample
  // against the box of the group, then one lane a tile, then one lane a point. The samples that
  // reach a tile wait in bit masks, so that it is loaded once for 128 of them.
  __device__ void measure_from(const float4* samples, int samples_count) {
    constexpr int kWords = 4;
    const uint32_t lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (uint32_t g = threadIdx.x / 32; g < groups; g += warps) {
      const FpsBox box = box_at(corners, room, g * 32 + lane);
      const FpsBox group_box = box_at(group_corners, room / 32, g);
      int mine = top[g * 32 + lane];
      for (int base = 0; base < samples_count; base += 32 * kWords) {
        const float group_top = __int_as_float(warp_max_signed(mine));
        unsigned mask[kWords];
        unsigned any = 0;
#pragma unroll
        for (int u = 0; u < kWords; ++u) {
          mask[u] = 0;
          const int begin = base + 32 * u, r = begin + static_cast<int>(lane);
          if (begin >= samples_count) continue;
          unsigned near = __ballot_sync(
              kFullWarp, r < samples_count && group_box.bound(samples[r]) < group_top);
          while (near) {
            const int bit = __ffs(near) - 1;
            near &= near - 1;
            if (box.bound(samples[begin + bit]) < __int_as_float(mine)) mask[u] |= 1u << bit;
          }
          any |= mask[u];
        }
        unsigned reached = __ballot_sync(kFullWarp, any != 0);
        while (reached) {
          const int owner = __ffs(reached) - 1;
          reached &= reached - 1;
          unsigned hits[kWords];
#pragma unroll
          for (int u = 0; u < kWords; ++u) hits[u] = __shfl_sync(kFullWarp, mask[u], owner);
          const int now = measure_tile<kWords>(g * 32 + owner, samples + base, hits);
          if (static_cast<int>(lane) == owner) mine = now;
        }
      }
      top[g * 32 + lane] = mine;
    }
  }

  // Lowers the distances of one tile to the samples of the masks; gives its new largest bits.
  template <int kWords>
  __device__ __forceinline__ int measure_tile(uint32_t t, const float4* samples,
                                              const unsigned (&hits)[kWords]) {
    constexpr int kAtOnce = 2;  // points of a lane
    const uint32_t begin = t * tile, end = min(begin + tile, count);
    float largest = -1.0f;
    for (uint32_t r = begin + threadIdx.x % 32; r < end; r += 32 * kAtOnce) {
      float4 p[kAtOnce];
      float d[kAtOnce], before[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const uint32_t at = r + 32 * k;
        p[k] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        before[k] = -1.0f;
        if (at < end) {
          p[k] = points[at];
          before[k] = dist2s[at];
        }
        d[k] = before[k];
      }
#pragma unroll
      for (int u = 0; u < kWords; ++u) {
        for (unsigned left = hits[u]; left; left &= left - 1) {
          const float4 q = samples[32 * u + __ffs(left) - 1];
#pragma unroll
          for (int k = 0; k < kAtOnce; ++k) {
            d[k] = fminf(d[k], dist2(p[k].x - q.x, p[k].y - q.y, p[k].z - q.z));
          }
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (d[k] < before[k]) dist2s[r + 32 * k] = d[k];
        largest = fmaxf(largest, d[k]);
      }
    }
    return warp_max_signed(__float_as_int(largest));
  }

  // Positions of all points with key >= K into pool_at, in order, at most kPool of them; gives their
  // number. As fill_window, one level up.
  template <int kPool>
  __device__ uint32_t gather(uint32_t* pool_at, int best, uint32_t last_code, float& depth,
                             int& limit) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    uint32_t low = 0, high = last_code, top_code = kNoCode, total = 0;
    for (int attempt = 0;; ++attempt) {
      limit = max(__float_as_int(__int_as_float(best) * (1.0f - depth)), 1);
      for (uint32_t g = warp; g < groups; g += warps) {
        uint32_t in_group = 0;
        each_above(g, limit, top_code,
                   [&](uint32_t, unsigned chosen) { in_group += __popc(chosen); });
        if (lane == 0) found[g] = in_group;
      }
      __syncthreads();
      total = 0;
      for (uint32_t g = lane; g < groups; g += 32) total += found[g];
      total = warp_sum(total);
      if (total > 0 && total <= kPool) break;
      __syncthreads();  // `found` is written again
      if (total == 0) {  // codes are being bisected, or clouds overlap
        if (top_code >= high) return 0;
        low = top_code + 1;
      } else if (limit < best) {
        depth *= attempt < 3 ? fminf(0.7f, fmaxf(0.01f, 0.5f * kPool / total)) : 0.0f;
        continue;
      } else {
        if (low >= high) return 0;
        high = min(top_code, high);
      }
      top_code = low + (high - low) / 2;
    }
    for (uint32_t g = warp; g < groups; g += warps) {
      uint32_t at = 0;
      for (uint32_t before = lane; before < g; before += 32) at += found[before];
      at = warp_sum(at);
      each_above(g, limit, top_code, [&](uint32_t r, unsigned chosen) {
        const uint32_t mine = at + __popc(chosen & ((1u << lane) - 1));
        if ((chosen >> lane & 1) && mine < kPool) pool_at[mine] = r;
        at += __popc(chosen);
      });
    }
    __syncthreads();
    if (total > 2 * kPool / 3) {
      depth *= 0.85f;
    } else if (total < kPool / 3) {
      depth = fminf(0.9f, fmaxf(1e-5f, 1.5f * depth));
    }
    return total;
  }

 private:
  // Calls use(position of the lane's point, ballot of the chosen) for all runs of 32 points of the
  // group that may hold points with bits >= limit and code <= top_code.
  template <class Use>
  __device__ __forceinline__ void each_above(uint32_t g, int limit, uint32_t top_code, Use use) {
    const uint32_t lane = threadIdx.x % 32;
    constexpr int kAtOnce = 4;  // tiles whose loads are under way together
    unsigned left = __ballot_sync(kFullWarp, top[g * 32 + lane] >= limit);
    while (left) {
      uint32_t begin[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        begin[k] = left ? (g * 32 + __ffs(left) - 1) * tile : count;
        left &= left - 1;
      }
      for (uint32_t run = lane; run < tile; run += 32) {
        float d[kAtOnce];
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          d[k] = begin[k] + run < count ? dist2s[begin[k] + run] : -1.0f;
        }
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const uint32_t r = begin[k] + run;
          bool chosen = __float_as_int(d[k]) >= limit;
          if (top_code != kNoCode && chosen) chosen = __float_as_uint(points[r].w) <= top_code;
          use(r, __ballot_sync(kFullWarp, chosen));
        }
      }
    }
  }
  __device__ __forceinline__ static uint32_t warp_sum(uint32_t x) {
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
    return x;
  }
};

// Deals the gathered points to the warps in runs, which keeps the box of a warp's points small;
// gives that box.
template <int kThreads, int kPoints>
__device__ __forceinline__ FpsBox load_pool(const FpsTiles& tiles, const uint32_t* pool_at,
                                            uint32_t gathered, FpsPool<kPoints>& pool) {
  constexpr uint32_t kWarps = kThreads / 32;
  const uint32_t per_warp = (gathered + kWarps - 1) / kWarps;
  const uint32_t begin = threadIdx.x / 32 * per_warp, end = min(begin + per_warp, gathered);
  FpsBox box = empty_box();
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t slot = begin + 32 * j + threadIdx.x % 32;
    float4 p = make_float4(0.0f, 0.0f, 0.0f, __uint_as_float(kNoCode));
    pool.d[j] = -1.0f;
    if (slot < end) {
      const uint32_t r = min(pool_at[slot], tiles.count - 1);  // clouds that overlap
      p = tiles.points[r];
      pool.d[j] = tiles.dist2s[r];
      extend(box, p);
    }
    pool.a[j] = p.x;
    pool.b[j] = p.y;
    pool.c[j] = p.z;
    pool.code[j] = __float_as_uint(p.w);
  }
  return warp_box(box);
}

}  // namespace torchvox
