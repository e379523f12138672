// SPDX-License-Identifier: Apache-2.0
//
// Takes samples from a candidate buffer, the points that a block keeps in registers. The shortlist,
// in shared memory, is every point of the buffer whose key (dist2, then smaller tie code) is at
// least K, for a K that leaves 32 or 64 of them at most; a round takes many samples from it,
// exactly those that taking one at a time would give.
#pragma once

#include <type_traits>

#include "csrc/kernels/sampling/fps/device.cuh"
#include "csrc/kernels/spatial/order.cuh"

namespace torchvox {

// In descending order of keys a point of the shortlist is the next sample unless an earlier sample
// is closer to it than its dist2, which lowers its key. So the samples down to the first point that
// was lowered but stays above K follow from the shortlist alone, by a few steps over bit masks: all
// other points have keys below K, and keys never rise.

// Shared memory of a block. A shortlist has 32 * kWide points; samples are collected in `sample`
// until they are written.
template <int kWide, int kSamples>
struct FpsShortlist {
  static constexpr int kPoints = 32 * kWide;
  static constexpr int kRoom = kSamples;
  using Mask = std::conditional_t<kWide == 2, uint64_t, uint32_t>;  // one bit per shortlist point

  // The relation of a shortlist point to the others.
  struct alignas(16) Row {
    Mask ahead;  // those with a larger key
    Mask lowers;  // those of them that are closer to it than its dist2
    Mask below;  // those of them that lower it below K
    int reach;  // bits of the largest distance to one that lowers it, but not below K
  };

  float4 point[kPoints];  // a, b, c, dist2
  uint64_t key[kPoints];
  Row row[kPoints];
  int per_warp[32];
  int count[3];  // shortlist points, one counter per attempt in turn
  int taken;  // samples of a round
  float4 sample[kRoom];  // a, b, c, code
  int bits[kRoom];  // of dist2 at selection time

  // A mask of one bit per lane and word; the points of word w come 32 * w further on.
  __device__ __forceinline__ static Mask ballot(const bool (&bit)[kWide]) {
    Mask mask = __ballot_sync(kFullWarp, bit[0]);
    if constexpr (kWide == 2) mask |= Mask{__ballot_sync(kFullWarp, bit[1])} << 32;
    return mask;
  }
};

// Fills the rows of the `count` shortlist points. A warp takes one of them at a time, and each lane
// compares it with one or two of the others.
template <int kWide, int kRoom>
__device__ __forceinline__ void compare_shortlist(FpsShortlist<kWide, kRoom>& shared, int count,
                                                  int limit) {
  using Shortlist = FpsShortlist<kWide, kRoom>;
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
    typename Shortlist::Row row{Shortlist::ballot(ahead), Shortlist::ballot(lowers),
                                Shortlist::ballot(below), 0};
    if (row.lowers != row.below) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) {
        if (lowers[w] && !below[w]) row.reach = max(row.reach, __float_as_int(d[w]));
      }
      row.reach = warp_max<int>(row.reach);
    }
    if (lane == 0) shared.row[j] = row;
  }
  __syncthreads();
}

// Appends the samples that follow from the shortlist to `sample`, from `at` on; returns their
// number, at least 1. One warp works, with one or two shortlist points per lane. A point is a
// sample if none of the points that lower it is a sample: the masks grow until every point is
// decided, in as many steps as the longest chain.
template <int kWide, int kRoom>
__device__ __forceinline__ int take_samples(FpsShortlist<kWide, kRoom>& shared, int count, int at) {
  using Shortlist = FpsShortlist<kWide, kRoom>;
  using Mask = typename Shortlist::Mask;
  if (threadIdx.x < 32) {
    const int lane = threadIdx.x;
    typename Shortlist::Row row[kWide];
    bool valid[kWide], bit[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      valid[w] = lane + 32 * w < count;
      row[w] = shared.row[lane + 32 * w];
      if (!valid[w]) row[w].lowers = 0;
    }
    const Mask all = static_cast<Mask>(~Mask{0}) >> (Shortlist::kPoints - count);
    Mask accepted = 0, lowered = 0;
    while ((accepted | lowered) != all) {
#pragma unroll
      for (int w = 0; w < kWide; ++w) bit[w] = valid[w] && (row[w].lowers & ~lowered) == 0;
      accepted = Shortlist::ballot(bit);
#pragma unroll
      for (int w = 0; w < kWide; ++w) bit[w] = (row[w].lowers & accepted) != 0;
      lowered = Shortlist::ballot(bit);
    }
    // A lowered point that stays above K: the order below its new dist2 is not known yet.
    int open = 0;
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      if ((lowered >> (lane + 32 * w) & 1) && (row[w].below & accepted) == 0) {
        open = max(open, row[w].reach);
      }
    }
    open = warp_max<int>(open);
    float4 p[kWide];
#pragma unroll
    for (int w = 0; w < kWide; ++w) {
      p[w] = shared.point[lane + 32 * w];
      bit[w] = (accepted >> (lane + 32 * w) & 1) && __float_as_int(p[w].w) > open;
    }
    const Mask taken = Shortlist::ballot(bit);
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

// Writes the collected samples to the slots [begin, end). A barrier before and after.
template <class Shortlist>
__device__ __forceinline__ void write_samples(const FpsArgs& args, const FpsCloud& cloud,
                                              const Shortlist& shared, int begin, int end) {
  __syncthreads();
  for (int s = begin + static_cast<int>(threadIdx.x); s < end; s += blockDim.x) {
    // Only if clouds overlap, from offsets in disorder, can there be a code of no point.
    const uint32_t i = cloud.tie.index(__float_as_uint(shared.sample[s - begin].w));
    write_sample(args, cloud, s, i < cloud.points ? int64_t{i} : -1,
                 __int_as_float(shared.bits[s - begin]));
  }
  __syncthreads();
}

// The points of the buffer that a thread keeps; d = -1 for none.
template <int kPoints>
struct FpsCandidateBuffer {
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

// Maximum of one number per warp, for all threads. One barrier; `per_warp` may be reused after the
// next one.
template <int kThreads>
__device__ __forceinline__ int block_max(int of_warp, int* per_warp) {
  if constexpr (kThreads == 32) return of_warp;
  const unsigned lane = threadIdx.x % 32;
  if (lane == 0) per_warp[threadIdx.x / 32] = of_warp;
  __syncthreads();
  return warp_max<int>(per_warp[lane % (kThreads / 32)]);
}

// How far below the largest dist2 the shortlist reaches; adapted to the number of points listed.
struct ShortlistDepth {
  float fraction = 0.1f;
  unsigned turn = 0;  // the counter in use
};

// Puts every point of the buffer with key >= K into the shortlist, for the K that the depth
// suggests, and returns their number, 1 to kShortlist. `best`: bits of the largest dist2, above 0.
// Sets `limit` to the bits of K's dist2, at least `floor`. If more points than fit tie for the
// maximum, K also has
// a code, determined by bisection.
template <int kPoints, class Shortlist>
__device__ __forceinline__ int fill_shortlist(const FpsCandidateBuffer<kPoints>& buffer,
                                              Shortlist& shared, int best, int floor,
                                              uint32_t last_code, ShortlistDepth& depth,
                                              int& limit) {
  constexpr int kShortlist = Shortlist::kPoints;
  uint32_t low = 0, high = last_code, top = kNoCode;
  for (int attempt = 0;; ++attempt) {
    limit = max(__float_as_int(__int_as_float(best) * (1.0f - depth.fraction)), max(floor, 1));
    int* const counter = &shared.count[depth.turn];
    depth.turn = depth.turn == 2 ? 0 : depth.turn + 1;
    if (threadIdx.x == 0) shared.count[depth.turn] = 0;
#pragma unroll
    for (int j = 0; j < kPoints; ++j) {
      if (__float_as_int(buffer.d[j]) >= limit && buffer.code[j] <= top) {
        const int at = atomicAdd(counter, 1);
        if (at < kShortlist) {
          shared.point[at] = make_float4(buffer.a[j], buffer.b[j], buffer.c[j], buffer.d[j]);
          shared.key[at] = uint64_t{__float_as_uint(buffer.d[j])} << 32 | ~buffer.code[j];
        }
      }
    }
    __syncthreads();
    const int listed = *counter;
    if (listed > 0 && listed <= kShortlist) {
      if (listed > kShortlist * 3 / 4) {
        depth.fraction *= 0.9f;
      } else if (listed < kShortlist / 2 && limit > floor) {
        depth.fraction =
            fminf(0.9f, fmaxf(1e-5f, depth.fraction * (listed < kShortlist / 4 ? 1.6f : 1.25f)));
      }
      return listed;
    }
    if (listed == 0) {  // only once the codes are being bisected
      low = top + 1;
    } else if (limit < best) {
      depth.fraction *= attempt < 3 ? fminf(0.7f, fmaxf(0.05f, 0.6f * kShortlist / listed)) : 0.0f;
      continue;
    } else {
      if (low >= high) return kShortlist;  // repeated codes, which only overlapping clouds have
      high = min(top, high);
    }
    top = low + (high - low) / 2;
  }
}

// Takes samples from the buffer while its best key is at least that of `floor` (bits of dist2,
// above 0), at most `needed` and as many as there is room for; returns their number. A shortlist
// costs four barriers and no global access. `box` is the box of the warp's points; without kPruned
// it is not used.
template <int kThreads, bool kPruned, int kPoints, class Shortlist>
__device__ __forceinline__ int drain_buffer(FpsCandidateBuffer<kPoints>& buffer,
                                            const PointBox& box, Shortlist& shortlist, int floor,
                                            uint32_t last_code, int needed, ShortlistDepth& depth) {
  const int lane = threadIdx.x % 32;
  int staged = 0, of_warp = warp_max<int>(buffer.best());
#pragma unroll 1
  while (staged < needed && staged <= Shortlist::kRoom - Shortlist::kPoints) {
    const int best = block_max<kThreads>(of_warp, shortlist.per_warp);
    if (best < floor) break;
    int limit;
    const int listed = fill_shortlist(buffer, shortlist, best, floor, last_code, depth, limit);
    compare_shortlist(shortlist, listed, limit);
    const int taken = take_samples(shortlist, listed, staged);
    const float4* const samples = shortlist.sample + staged;
    staged += taken;
    if constexpr (!kPruned) {
#pragma unroll 4
      for (int r = 0; r < taken; ++r) buffer.measure_from(samples[r]);
      of_warp = warp_max<int>(buffer.best());
    } else {
      bool lowered = false;
      for (int base = 0; base < taken;
           base += 32) {  // one lane per sample: can it lower a point of the warp?
        const bool near =
            base + lane < taken && box.bound(samples[base + lane]) < __int_as_float(of_warp);
        unsigned hits = __ballot_sync(kFullWarp, near);
        lowered |= hits != 0;
        while (hits) {  // two at a time, to wait for shared memory once
          const int first = __ffs(hits) - 1;
          hits &= hits - 1;
          const int second = hits ? __ffs(hits) - 1 : first;
          hits &= hits - 1;
          const float4 q = samples[base + first], r = samples[base + second];
          buffer.measure_from(q);
          if (second != first) buffer.measure_from(r);
        }
      }
      if (lowered) of_warp = warp_max<int>(buffer.best());
    }
  }
  return staged;
}

}  // namespace torchvox
