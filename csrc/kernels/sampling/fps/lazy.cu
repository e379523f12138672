// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/fps/team.cuh"

namespace torchvox {
namespace {

// How far below the largest dist2 the pool reaches, adapted to what it found.
struct PoolDepth {
  float fraction = 0.2f;
  int known = -1;  // about the bits of the largest dist2; -1 before the first step
};

// Has all blocks measure from the `count` last samples and gathers a pool: every point with key >=
// K, for the K that the depth suggests. As fill_window, one level up. Gives the bits of K's dist2,
// 0 when no dist2 above 0 is left. Calls `meanwhile` while the others are at work.
template <int kThreads, int kPoints, class Meanwhile>
__device__ __forceinline__ int gather_pool(FpsCrew<kThreads, kPoints>& crew, int count,
                                           uint32_t last_code, PoolDepth& depth,
                                           Meanwhile meanwhile) {
  constexpr uint32_t kPool = kThreads * kPoints;
  uint32_t low = 0, high = last_code, top_code = kNoCode;
  for (int attempt = 0;; ++attempt) {
    const int limit = depth.known < 0
        ? 0x7fffffff
        : max(__float_as_int(__int_as_float(depth.known) * (1.0f - depth.fraction)), 1);
    crew.ask(count, limit, top_code);
    if (attempt == 0) meanwhile();
    crew.answer();
    count = 0;
    const uint32_t total = crew.shared.total;
    const int best = crew.shared.best;
    __syncthreads();
    if (best <= 0) return 0;
    depth.known = best;
    if (total > 0 && total <= kPool) {
      if (total > 2 * kPool / 3) {
        depth.fraction *= 0.85f;
      } else if (total < kPool / 3) {
        const float factor = total < kPool / 16 ? 4.0f : 1.5f;
        depth.fraction = fminf(0.9f, fmaxf(1e-5f, factor * depth.fraction));
      }
      return limit;
    }
    if (total == 0) {
      if (top_code == kNoCode) {  // K was above the largest
        if (limit <= best) return 0;
        continue;
      }
      if (top_code >= high) return 0;
      low = top_code + 1;
    } else if (limit < best) {
      depth.fraction *=
          attempt < 4 ? fminf(0.7f, fmaxf(0.01f, 0.5f * kPool / static_cast<float>(total))) : 0.0f;
      continue;
    } else {  // more than a pool tie for the largest: bisect their codes
      if (low >= high) return 0;
      depth.fraction = 0.0f;
      high = min(top_code, high);
    }
    top_code = low + (high - low) / 2;
  }
}

// `members` blocks per cloud, whose candidates lie in spatial order in tiles. A round gathers the
// points with the largest keys, all those at or above some K, into the leading block's registers
// (the pool), which takes samples from the pool by windows while its best key is at least K; then
// all blocks measure their tiles from the samples of the round. Points outside the pool have keys
// below K and only fall, so the pool's best is the cloud's. Points and distances are read and
// written by a few passes, some hundred samples each, in which most tiles are skipped by their
// boxes.
template <int kThreads, int kPoints>
__global__ void __launch_bounds__(kThreads, 1)
    lazy_kernel(const __grid_constant__ FpsArgs args, const __grid_constant__ SpatialOrder order,
                const __grid_constant__ LazyScratch scratch, uint32_t members,
                uint32_t smallest_tile, uint32_t tile_room) {
  extern __shared__ float boxes[];
  __shared__ LazyShared<kThreads, kPoints> shared;
  const uint32_t of_wave = blockIdx.x / members, member = blockIdx.x % members;
  const FpsCloud cloud = FpsCloud::of(args, order.first_cloud + of_wave);
  if (int64_t{cloud.tie.space()} <= order.above) return;  // a block kernel's cloud
  if (member == 0) fill_unused(args, cloud);
  if (cloud.samples == 0) return;

  const CloudSummary summary = order.summaries[of_wave];
  const int64_t segment = args.ragged ? cloud.first : int64_t{of_wave} * args.capacity;
  FpsTiles& tiles = shared.tiles;
  if (threadIdx.x == 0) {
    tiles.points = order.sorted + segment;
    tiles.dist2s = scratch.dist2 + segment;
    tiles.count = min(summary.candidates, cloud.points);
    tiles.lay_out(boxes, tile_room, smallest_tile, member, members);
  }
  __syncthreads();
  tiles.build(initial_dist2(args));
  FpsCrew<kThreads, kPoints> crew{shared, scratch.team + of_wave, members - 1};
  if (member > 0) {
    crew.follow();
    return;
  }

  if (threadIdx.x < 3) shared.window.count[threadIdx.x] = 0;
  const int64_t first = tiles.count == 0 ? -1 : int64_t{cloud.tie.index(~summary.first)};
  const uint32_t last_code = cloud.tie.space() - 1;
  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  uint32_t cursor = 0;
  int s = 0, staged = 0;
  for (; s < starts; ++s) {
    const int64_t i = take_start(args, cloud, s, first, cursor);
    if (i < 0) continue;
    const Point3 q = load_point(args, cloud, static_cast<uint32_t>(i));
    if (threadIdx.x == 0) shared.window.sample[staged] = make_float4(q.a, q.b, q.c, 0.0f);
    if (++staged < kLazyRoom) continue;
    __syncthreads();
    crew.ask(staged, 0x7fffffff, kNoCode);
    crew.answer();
    staged = 0;
  }
  __syncthreads();
  WindowDepth window_depth;
  PoolDepth pool_depth;
  int written = s;  // samples; those after it are still staged
  bool exhausted = false;
#pragma unroll 1
  while (s < samples) {
    const int floor = gather_pool(crew, staged, last_code, pool_depth, [&] {
      write_samples(args, cloud, shared.window, written, s);
      written = s;
    });
    exhausted = floor == 0;
    if (exhausted) break;
    const uint32_t total = shared.total;
    order_pool(shared, total, tiles.count);
    FpsPool<kPoints> pool;
    const FpsBox box = load_pool<kThreads>(tiles, shared.pool, total, last_code, pool);
    staged = drain_pool<kThreads, true>(pool, box, shared.window, floor, last_code, samples - s,
                                        window_depth);
    exhausted = staged == 0;  // never, but for clouds that overlap, from offsets in disorder
    if (exhausted) break;
    pool_depth.known = floor;
    s += min(staged, samples - s);
  }
  write_samples(args, cloud, shared.window, written, s);
  crew.ask(-1, 0, 0);
  if (exhausted) finish_exhausted(args, cloud, s, first, scratch.mark + segment);
}

using LazyKernel = void (*)(FpsArgs, SpatialOrder, LazyScratch, uint32_t, uint32_t, uint32_t);

LazyKernel kernel_of(int threads) {
  switch (threads) {
    case 64: return lazy_kernel<64, 1>;  // for tests: every round overflows
    case 512: return lazy_kernel<512, 2>;
    case 1024: return lazy_kernel<1024, 2>;
  }
  return nullptr;
}

}  // namespace

LazyScratch::LazyScratch(const FpsPlan& plan, const SpatialOrder& order, Workspace& workspace)
    : dist2(reinterpret_cast<float*>(order.sort.keys[0])),
      mark(order.sort.keys[1]),
      team(workspace.take<FpsTeam>(plan.members > 1 ? plan.clouds_at_once : 0)) {}

cudaError_t launch_fps_lazy(const FpsArgs& args, const FpsPlan& plan, const SpatialOrder& order,
                            const LazyScratch& scratch, cudaStream_t stream) {
  if (order.clouds == 0) return cudaSuccess;
  const LazyKernel kernel = kernel_of(plan.lazy_threads);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const size_t bytes = FpsTiles::bytes(plan.tile_room);
  // One limit for every call: it belongs to the function, and other threads set it too.
  TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(FpsTiles::bytes(plan.most_tiles))));
  // Blocks that wait for each other must all be resident, which only such a launch promises.
  cudaLaunchAttribute cooperative = {};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.blockDim = dim3(static_cast<unsigned>(plan.lazy_threads));
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cooperative;
  const auto launch_with = [&](int members) {
    config.gridDim = dim3(static_cast<unsigned>(order.clouds * members));
    config.numAttrs = members > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args, order, scratch, static_cast<uint32_t>(members),
                              static_cast<uint32_t>(plan.tile),
                              static_cast<uint32_t>(plan.tile_room));
  };
  if (plan.members > 1) {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(scratch.team, 0, order.clouds * sizeof(FpsTeam), stream));
    const cudaError_t status = launch_with(plan.members);
    // A part of a GPU may have less than its multiprocessors: then one block a cloud.
    if (status != cudaErrorCooperativeLaunchTooLarge && status != cudaErrorNotSupported) {
      return status;
    }
    cudaGetLastError();
  }
  return launch_with(1);
}

}  // namespace torchvox
