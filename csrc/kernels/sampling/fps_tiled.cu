// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/fps_device.cuh"
#include "csrc/kernels/sampling/fps_kernels.cuh"

namespace torchvox {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kRound = 4;  // points of a tile that a lane loads before it uses the first

struct TiledScratch {
  const float4* sorted;
  float* dist2;
  uint32_t* mark;
};

struct Slot {
  int bits;
  uint32_t code;
  float a, b, c;
};

// One block per cloud, whose candidates lie in spatial order in tiles. Tile k * 32 * warps + lane *
// warps + warp belongs to slot k of that lane: neighbouring tiles go to different warps, and a
// sample touches few, neighbouring tiles. A lane keeps its tiles' boxes, largest distances and
// winners' codes in registers, the winners' coordinates in shared memory; points and distances stay
// in L1 and L2. A sample tests every box, updates the tiles that it can change (2-8 of them), and
// costs one barrier. Any number of points: tiles grow once every slot of every lane is taken.
template <int kTiles>
__global__ void __launch_bounds__(kMaxThreads)
    tiled_kernel(const __grid_constant__ FpsArgs args, const __grid_constant__ SpatialOrder order,
                 const TiledScratch scratch, int smallest_tile) {
  extern __shared__ float winners[];  // [3][kTiles * blockDim.x]
  __shared__ Slot slots[2][kMaxThreads / 32];
  __shared__ uint2 stage[kStage];
  const FpsCloud cloud = FpsCloud::of(args, order.first_cloud + blockIdx.x);
  if (int64_t{cloud.tie.space()} <= order.above) return;  // a block kernel's cloud
  fill_unused(args, cloud);
  if (cloud.samples == 0) return;

  const CloudSummary summary = order.summaries[blockIdx.x];
  const int64_t segment = args.ragged ? cloud.first : int64_t{blockIdx.x} * args.capacity;
  const float4* const points = scratch.sorted + segment;
  float* const dist2s = scratch.dist2 + segment;
  const uint32_t count = min(summary.candidates, cloud.points);
  const int64_t first = count == 0 ? -1 : int64_t{cloud.tie.index(~summary.first)};
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const unsigned capacity = kTiles * blockDim.x;
  float* const winner_a = winners;
  float* const winner_b = winner_a + capacity;
  float* const winner_c = winner_b + capacity;
  uint32_t tile = smallest_tile;
  while (uint64_t{tile} * capacity < count) tile *= 2;
  const uint32_t tiles = (count + tile - 1) / tile;

  float low_a[kTiles], low_b[kTiles], low_c[kTiles];
  float high_a[kTiles], high_b[kTiles], high_c[kTiles];
  FpsBest best[kTiles];
  const float initial = initial_dist2(args);
  const float infinity = __int_as_float(0x7f800000);
#pragma unroll
  for (int k = 0; k < kTiles; ++k) {
    low_a[k] = low_b[k] = low_c[k] = infinity;
    high_a[k] = high_b[k] = high_c[k] = -infinity;
    best[k] = {__float_as_int(-1.0f), kNoCode};
#pragma unroll 1
    for (unsigned owner = 0; owner < 32; ++owner) {
      const uint32_t t = (k * 32 + owner) * warps + warp;
      if (t >= tiles) break;
      const uint32_t begin = t * tile, end = min(begin + tile, count);
      uint32_t low[3] = {0xffffffffu, 0xffffffffu, 0xffffffffu}, high[3] = {0, 0, 0};
      uint32_t code = kNoCode;
      float4 p, winner = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (uint32_t r = begin + lane; r < end; r += 32) {
        p = points[r];
        dist2s[r] = initial;
        const float axes[3] = {p.x, p.y, p.z};
        for (int axis = 0; axis < 3; ++axis) {
          low[axis] = min(low[axis], ordered_bits(axes[axis]));
          high[axis] = max(high[axis], ordered_bits(axes[axis]));
        }
        if (__float_as_uint(p.w) < code) {
          code = __float_as_uint(p.w);
          winner = p;
        }
      }
      const uint32_t first_of_tile = warp_min(code);
      if (code == first_of_tile && code != kNoCode) {
        winner_a[t] = winner.x;
        winner_b[t] = winner.y;
        winner_c[t] = winner.z;
      }
      for (int axis = 0; axis < 3; ++axis) {
        low[axis] = warp_min(low[axis]);
        high[axis] = warp_max(high[axis]);
      }
      if (lane == owner) {
        low_a[k] = from_ordered_bits(low[0]);
        low_b[k] = from_ordered_bits(low[1]);
        low_c[k] = from_ordered_bits(low[2]);
        high_a[k] = from_ordered_bits(high[0]);
        high_b[k] = from_ordered_bits(high[1]);
        high_c[k] = from_ordered_bits(high[2]);
        best[k] = {__float_as_int(initial), first_of_tile};
      }
    }
  }
  __syncwarp();

  const auto measure_from = [&](const Point3& q) {
#pragma unroll
    for (int k = 0; k < kTiles; ++k) {
      if (k * blockDim.x >= tiles) break;  // the same for the whole block
      const float bound = dist2(gap(low_a[k], high_a[k], q.a), gap(low_b[k], high_b[k], q.b),
                                gap(low_c[k], high_c[k], q.c));
      unsigned hit = __ballot_sync(kFullWarp, bound < __int_as_float(best[k].bits));
      while (hit) {
        const unsigned owner = __ffs(hit) - 1;
        hit &= hit - 1;
        const uint32_t t = (k * 32 + owner) * warps + warp;
        const uint32_t begin = t * tile, end = min(begin + tile, count);
        FpsBest mine;
        float4 winner = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint32_t r = begin + lane; r < end; r += 32 * kRound) {
          float4 p[kRound];
          float d[kRound];
#pragma unroll
          for (int u = 0; u < kRound; ++u) {
            const uint32_t at = r + 32 * u;
            if (at < end) {
              p[u] = points[at];
              d[u] = dist2s[at];
            }
          }
#pragma unroll
          for (int u = 0; u < kRound; ++u) {
            const uint32_t at = r + 32 * u;
            if (at >= end) break;
            const float now = dist2({p[u].x, p[u].y, p[u].z}, q);
            if (now < d[u]) {
              d[u] = now;
              dist2s[at] = now;
            }
            if (is_better(__float_as_int(d[u]), __float_as_uint(p[u].w), mine)) {
              mine = {__float_as_int(d[u]), __float_as_uint(p[u].w)};
              winner = p[u];
            }
          }
        }
        const FpsBest of_tile = warp_best(mine);
        if (mine.bits == of_tile.bits && mine.code == of_tile.code) {
          winner_a[t] = winner.x;
          winner_b[t] = winner.y;
          winner_c[t] = winner.z;
        }
        if (lane == owner) best[k] = of_tile;
      }
    }
    __syncwarp();  // winners are read by their owners
  };

  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  uint32_t cursor = 0;
  int s = 0;
  for (; s < starts; ++s) {
    const int64_t i = take_start(args, cloud, s, first, cursor);
    if (i >= 0) measure_from(load_point(args, cloud, static_cast<uint32_t>(i)));
  }
  bool exhausted = false;
  while (s < samples && !exhausted) {  // as in fps_block.cu, nothing rare in the inner loop
    const int begin = s, end = samples - s < kStage ? samples : s + kStage;
    for (; s < end; ++s) {
      FpsBest mine;
      uint32_t mine_tile = 0;
#pragma unroll
      for (int k = 0; k < kTiles; ++k) {
        if (is_better(best[k].bits, best[k].code, mine)) {
          mine = best[k];
          mine_tile = (k * 32 + lane) * warps + warp;
        }
      }
      const FpsBest of_warp = warp_best(mine);
      // Slots double-buffered by the parity of s: one barrier is enough (fps_block.cu).
      const unsigned holders =
          __ballot_sync(kFullWarp, mine.bits == of_warp.bits && mine.code == of_warp.code);
      if (lane == __ffs(holders) - 1) {
        slots[s & 1][warp] = {mine.bits, mine.code, winner_a[mine_tile], winner_b[mine_tile],
                              winner_c[mine_tile]};
      }
      __syncthreads();
      const Slot& slot = slots[s & 1][lane % warps];
      const FpsBest theirs{slot.bits, slot.code};
      const FpsBest winner = warp_best(theirs);
      if (winner.bits <= 0) break;
      if (threadIdx.x == 0) stage[s - begin] = make_uint2(winner.code, winner.bits);
      const unsigned from =
          __ffs(
              __ballot_sync(kFullWarp, theirs.bits == winner.bits && theirs.code == winner.code)) -
          1;
      const Slot& source = slots[s & 1][from % warps];
      measure_from({source.a, source.b, source.c});
    }
    write_stage(args, cloud, stage, begin, s);
    exhausted = s < end;
  }
  if (exhausted) finish_exhausted(args, cloud, s, first, scratch.mark + segment);
}

}  // namespace

cudaError_t launch_fps_tiled(const FpsArgs& args, const FpsPlan& plan, const SpatialOrder& order,
                             cudaStream_t stream) {
  if (order.clouds == 0) return cudaSuccess;
  const auto kernel = plan.tiles_per_lane == 1 ? tiled_kernel<1>
      : plan.tiles_per_lane == 2               ? tiled_kernel<2>
      : plan.tiles_per_lane == 4               ? tiled_kernel<4>
                                               : tiled_kernel<8>;
  // The sort is over: its buffers hold the distances, and the marks of exhausted clouds. Only the
  // sorted positions are still read, and not by this kernel.
  const TiledScratch scratch{order.sorted, reinterpret_cast<float*>(order.sort.keys[0]),
                             order.sort.keys[1]};
  const int bytes = static_cast<int>(3 * sizeof(float)) * plan.tiles_per_lane * plan.large_threads;
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned>(order.clouds), plan.large_threads, bytes, stream>>>(
      args, order, scratch, plan.tile);
  return cudaGetLastError();
}

}  // namespace torchvox
