// SPDX-License-Identifier: Apache-2.0
//
// Many samples at a time, and exactly those that one at a time would give. The `window` is every
// point whose key (dist2, then smaller tie code) is at least K. In falling
// order of keys a window point is the next sample unless an earlier one came closer to it than its
// dist2. So all samples down to the first point that was reached and yet stays in the race follow
// from the window alone, by a few steps over bit masks; whatever lies outside has a key below K and
// only falls.
#pragma once

#include "csrc/kernels/sampling/fps_device.cuh"

namespace torchvox {

inline constexpr int kWindow = 64;

#ifdef FPS_PROFILE
__device__ unsigned long long fps_profile[16];
#define MARK(k)                                   \
  do {                                            \
    if (threadIdx.x == 0 && blockIdx.x == 0) {    \
      const long long now = clock64();            \
      fps_profile[k] += now - fps_profile[15];    \
      fps_profile[15] = now;                      \
    }                                             \
  } while (0)
#define COUNT(k, n)                                                    \
  do {                                                                 \
    if (threadIdx.x == 0 && blockIdx.x == 0) fps_profile[k] += n;      \
  } while (0)
#else
#define MARK(k)
#define COUNT(k, n)
#endif

// Masks over the window points that have a larger key than a certain one.
struct WindowRow {
  uint64_t ahead;  // all of them
  uint64_t lowers;  // those closer to it than its dist2
  uint64_t below;  // those that lower it below K
  int reach;  // bits of the largest distance to one that lowers it, yet not below K
};

// Shared memory of a block. Samples are collected in `sample` until they are written out.
template <int kRoom>
struct FpsWindow {
  float4 point[kWindow];  // a, b, c, dist2
  uint32_t code[kWindow];
  WindowRow row[kWindow];
  int per_warp[32];
  int count[3];  // of window points, one for every attempt in turn
  int taken;
  float4 sample[kRoom];  // a, b, c, code
  int bits[kRoom];  // of dist2 at selection time
};

// The points that a thread keeps in registers; code kNoCode and d = -1 where there is none.
template <int kPoints>
struct FpsPool {
  float a[kPoints], b[kPoints], c[kPoints], d[kPoints];
  uint32_t code[kPoints];

  __device__ __forceinline__ int best() const {
    float largest = d[0];
#pragma unroll
    for (int j = 1; j < kPoints; ++j) largest = fmaxf(largest, d[j]);
    return __float_as_int(largest);
  }
  __device__ __forceinline__ void measure_from(const float4& q) {
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      d[j] = fminf(d[j], dist2(a[j] - q.x, b[j] - q.y, c[j] - q.z));
    }
  }
};

__device__ __forceinline__ int warp_max_signed(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kFullWarp, x);
#else
  for (int step = 16; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
#endif
}

// Largest of one number per warp, for all threads. One barrier; `per_warp` is free again at the
// next one.
template <int kThreads>
__device__ __forceinline__ int block_max(int of_warp, int* per_warp) {
  if constexpr (kThreads == 32) return of_warp;
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) per_warp[threadIdx.x / 32] = of_warp;
  __syncthreads();
  return warp_max_signed(per_warp[lane % (kThreads / 32)]);
}

// How far below the largest dist2 the window reaches, adapted to what it found.
struct WindowDepth {
  float fraction = 0.1f;
  unsigned turn = 0;  // of the counters
};

// Puts every pool point with key >= K into the window, for the K that the depth suggests, and gives
// their number, 1 to kWindow. `best`: bits of the largest dist2, above 0. `limit` leaves as the bits
// of K's dist2, at least `floor`. Should more than a window tie for the maximum, K has a code too,
// found by bisection.
template <int kPoints, int kRoom>
__device__ __forceinline__ int fill_window(const FpsPool<kPoints>& pool, FpsWindow<kRoom>& shared,
                                           int best, int floor, uint32_t last_code,
                                           WindowDepth& depth, int& limit) {
  uint32_t low = 0, high = last_code, top = kNoCode;
  for (int attempt = 0;; ++attempt) {
    limit = max(__float_as_int(__int_as_float(best) * (1.0f - depth.fraction)), max(floor, 1));
    int* const counter = &shared.count[depth.turn];
    depth.turn = depth.turn == 2 ? 0 : depth.turn + 1;
    if (threadIdx.x == 0) shared.count[depth.turn] = 0;
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      if (__float_as_int(pool.d[j]) >= limit && pool.code[j] <= top) {
        const int at = atomicAdd(counter, 1);
        if (at < kWindow) {
          shared.point[at] = make_float4(pool.a[j], pool.b[j], pool.c[j], pool.d[j]);
          shared.code[at] = pool.code[j];
        }
      }
    }
    __syncthreads();
    const int found = *counter;
    if (found > 0 && found <= kWindow) {
      if (found > kWindow * 3 / 4) {
        depth.fraction *= 0.9f;
      } else if (found < kWindow / 2 && limit > floor) {
        depth.fraction = fminf(0.9f, fmaxf(1e-5f, depth.fraction * (found < kWindow / 4 ? 1.6f : 1.25f)));
      }
      return found;
    }
    if (found == 0) {  // only once the codes are being bisected
      low = top + 1;
    } else if (limit < best) {
      depth.fraction *= attempt < 3 ? fminf(0.7f, fmaxf(0.05f, 0.6f * kWindow / found)) : 0.0f;
      continue;
    } else {
      if (low >= high) return kWindow;  // codes that repeat: only clouds that overlap have them
      high = min(top, high);
    }
    top = low + (high - low) / 2;
  }
}

// For every window point j, who is before it in the row of j. A warp takes one j at a time, a lane
// two of the others.
template <int kRoom>
__device__ __forceinline__ void compare_window(FpsWindow<kRoom>& shared, int count, int limit) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const float4 p[2] = {shared.point[lane], shared.point[lane + 32]};
  const uint32_t code[2] = {shared.code[lane], shared.code[lane + 32]};
  for (int j = threadIdx.x / 32; j < count; j += warps) {
    const float4 q = shared.point[j];
    const uint32_t q_code = shared.code[j];
    WindowRow row{};
    int reach = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (half && count <= 32) break;
      const float d = dist2(p[half].x - q.x, p[half].y - q.y, p[half].z - q.z);
      const bool ahead = lane + 32 * half < count &&
          (p[half].w > q.w || (p[half].w == q.w && code[half] < q_code));
      const bool lowers = ahead && d < q.w;
      const bool below = lowers && __float_as_int(d) < limit;
      row.ahead |= uint64_t{__ballot_sync(kFullWarp, ahead)} << (32 * half);
      row.lowers |= uint64_t{__ballot_sync(kFullWarp, lowers)} << (32 * half);
      row.below |= uint64_t{__ballot_sync(kFullWarp, below)} << (32 * half);
      if (lowers && !below) reach = max(reach, __float_as_int(d));
    }
    if (row.lowers != row.below) row.reach = warp_max_signed(reach);
    if (lane == 0) shared.row[j] = row;
  }
  __syncthreads();
}

__device__ __forceinline__ uint64_t ballot64(bool first, bool second) {
  return uint64_t{__ballot_sync(kFullWarp, second)} << 32 | __ballot_sync(kFullWarp, first);
}

// Appends the samples that follow from the window to `sample`, from `at` on; gives their number, at
// least 1. One warp, a lane two window points. A point is a sample when none of those that lower it
// is one, and none when one of them is: masks grow until every point is decided, in as many steps
// as the longest chain.
template <int kRoom>
__device__ __forceinline__ int take_samples(FpsWindow<kRoom>& shared, int count, int at) {
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    const bool valid[2] = {lane < count, lane + 32 < count};
    const WindowRow row[2] = {shared.row[lane], shared.row[lane + 32]};
    const uint64_t all = ~uint64_t{0} >> (64 - count);
    uint64_t accepted = 0, lowered = 0;
    while ((accepted | lowered) != all) {
      const uint64_t safe = ballot64(valid[0] && (row[0].lowers & ~lowered) == 0,
                                     valid[1] && (row[1].lowers & ~lowered) == 0);
      lowered = ballot64(valid[0] && (row[0].lowers & accepted) != 0,
                         valid[1] && (row[1].lowers & accepted) != 0);
      accepted = safe;
    }
    // Lowered, and still in the window: from its new dist2 down the order is open.
    int open = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool stays = valid[half] && (row[half].lowers & accepted) != 0 &&
          (row[half].below & accepted) == 0;
      if (stays) open = max(open, row[half].reach);
    }
    open = warp_max_signed(open);
    const float d[2] = {shared.point[lane].w, shared.point[lane + 32].w};
    const bool take[2] = {(accepted >> lane & 1) && __float_as_int(d[0]) > open,
                          (accepted >> (lane + 32) & 1) && __float_as_int(d[1]) > open};
    const uint64_t taken = ballot64(take[0], take[1]);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!take[half]) continue;
      const float4 p = shared.point[lane + 32 * half];
      const int rank = at + __popcll(row[half].ahead & taken);
      shared.sample[rank] =
          make_float4(p.x, p.y, p.z, __uint_as_float(shared.code[lane + 32 * half]));
      shared.bits[rank] = __float_as_int(p.w);
    }
    if (lane == 0) shared.taken = __popcll(taken);
  }
  __syncthreads();
  return shared.taken;
}

// Writes the collected samples to the slots [begin, end). Barriers on both sides.
template <int kRoom>
__device__ __forceinline__ void write_samples(const FpsArgs& args, const FpsCloud& cloud,
                                              const FpsWindow<kRoom>& shared, int begin, int end) {
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
