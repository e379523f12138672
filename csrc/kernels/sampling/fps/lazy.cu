// SPDX-License-Identifier: Apache-2.0
//
// Furthest point sampling of large clouds: a group of blocks per cloud, one warp per group of
// tiles, one lane per point. The first block leads: it has the others measure their tiles from the
// last samples and collect the points at the largest distances into its candidate buffer, and takes
// the next samples from there. Most tiles are skipped by their boxes; the others cost 20 bytes per
// point, from L2.
#include "csrc/kernels/sampling/fps/kernels.cuh"
#include "csrc/kernels/sampling/fps/tiles.cuh"

namespace torchvox {

// Shared memory of a block of the lazy kernel, besides its boxes.
template <int kThreads, int kPoints>
struct LazyShared {
  static constexpr int kBuffer = kThreads * kPoints;
  static constexpr int kBuckets = 256;
  static_assert(kBuffer <= kLazyBuffer);
  FpsTiles tiles;
  FpsShortlist<2, kLazyRoom> shortlist;
  uint32_t buffer[kBuffer];  // positions
  uint16_t lists[kThreads / 32][FpsTiles::kListed];
  uint32_t bucket[kBuckets];
  uint32_t total;  // points collected
  int best;  // bits of the largest dist2
  uint32_t at;  // where the block's points begin in the common buffer
};

// The group of blocks of a cloud, for each of its blocks.
template <int kThreads, int kPoints>
struct FpsBlockGroup {
  using Shared = LazyShared<kThreads, kPoints>;
  Shared& shared;
  FpsGroupState* const state;
  const unsigned others;  // blocks besides the leader
  unsigned steps = 0;

  // Called by the leader: starts a step of all blocks. They measure from the `count` samples in
  // shared memory and collect the points with bits >= limit and code <= top_code.
  __device__ void request(int count, int limit, uint32_t top_code) {
    ++steps;
    if (others == 0) {
      if (count >= 0) work(count, limit, top_code);
      return;
    }
    for (int r = threadIdx.x; r < count; r += kThreads) {
      state->samples[r] = shared.shortlist.sample[r];
    }
    if (threadIdx.x == 0) {
      state->step = {count, limit, top_code};
      state->total = 0;
      state->best = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      *static_cast<volatile unsigned*>(&state->requested) = steps;
    }
    if (count >= 0 && shared.tiles.groups > 0) work(count, limit, top_code);
  }
  // Called by the leader: ends the step. Puts the positions of the points into `buffer`, if they
  // fit, their number into `total` and the largest dist2 into `best`.
  __device__ void collect() {
    if (others == 0) return;
    if (threadIdx.x == 0) {
      const volatile unsigned* const completed = &state->completed;
      while (*completed != steps * others) {
      }
      __threadfence();
    }
    __syncthreads();
    // Reads all of them instead of waiting for their number first.
    for (int k = threadIdx.x; k < Shared::kBuffer; k += kThreads) {
      shared.buffer[k] = __ldcg(&state->buffer[k]);
    }
    if (threadIdx.x == 0) {
      shared.total = __ldcg(&state->total);
      shared.best = __ldcg(&state->best);
    }
    __syncthreads();
  }
  // Called by the other blocks: works until the end.
  __device__ void follow() {
    while (true) {
      ++steps;
      if (threadIdx.x == 0) {
        const volatile unsigned* const requested = &state->requested;
        while (*requested != steps) __nanosleep(20);
        __threadfence();
      }
      __syncthreads();
      const int4 step = __ldcg(reinterpret_cast<const int4*>(&state->step));
      for (int r = threadIdx.x; r < kLazyRoom; r += kThreads) {
        shared.shortlist.sample[r] = __ldcg(&state->samples[r]);  // all, whatever their number
      }
      if (step.x < 0) return;
      work(step.x, step.y, static_cast<uint32_t>(step.z));
      if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(&state->completed, 1);
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
      const int mine = shared.tiles.measure_group(i, shared.shortlist.sample, count,
                                                  shared.lists[threadIdx.x / 32]);
      best = max(best, mine);
      shared.tiles.each_above(i, mine, limit, top_code, [&](uint32_t r, unsigned chosen) {
        uint32_t at = 0;
        if (lane == 0) at = atomicAdd(&shared.total, __popc(chosen));
        at = __shfl_sync(kFullWarp, at, 0) + __popc(chosen & lanes_below(lane));
        if ((chosen >> lane & 1) && at < Shared::kBuffer) shared.buffer[at] = r;
      });
    }
    best = warp_max<int>(best);
    if (lane == 0 && best > 0) atomicMax(&shared.best, best);
    __syncthreads();
    if (others == 0) return;
    const uint32_t total = shared.total;
    if (threadIdx.x == 0) {
      if (shared.best > 0) atomicMax(&state->best, shared.best);
      if (total > 0) shared.at = atomicAdd(&state->total, total);
    }
    __syncthreads();
    for (uint32_t k = threadIdx.x; k < min(total, uint32_t{Shared::kBuffer}); k += kThreads) {
      if (shared.at + k < Shared::kBuffer) state->buffer[shared.at + k] = shared.buffer[k];
    }
    __syncthreads();
  }
};

// Sorts the `total` positions of the buffer roughly, so that neighbors in space come close.
template <int kThreads, int kPoints>
__device__ __forceinline__ void order_buffer(LazyShared<kThreads, kPoints>& shared, uint32_t total,
                                             uint32_t points) {
  constexpr uint32_t kBuckets = LazyShared<kThreads, kPoints>::kBuckets;
  for (uint32_t b = threadIdx.x; b < kBuckets; b += kThreads) shared.bucket[b] = 0;
  __syncthreads();
  uint32_t at[kPoints], bucket[kPoints], rank[kPoints];
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t k = threadIdx.x + j * kThreads;
    if (k >= total) continue;
    at[j] = min(shared.buffer[k], points - 1);  // larger only if clouds overlap
    bucket[j] = static_cast<uint32_t>(uint64_t{at[j]} * kBuckets / points);
    rank[j] = atomicAdd(&shared.bucket[bucket[j]], 1);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    constexpr uint32_t kEach = kBuckets / 32;
    uint32_t sum = 0;
    for (uint32_t b = 0; b < kEach; ++b) sum += shared.bucket[threadIdx.x * kEach + b];
    uint32_t before = warp_inclusive(sum) - sum;
    for (uint32_t b = 0; b < kEach; ++b) {
      const uint32_t here = shared.bucket[threadIdx.x * kEach + b];
      shared.bucket[threadIdx.x * kEach + b] = before;
      before += here;
    }
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    if (threadIdx.x + j * kThreads < total)
      shared.buffer[shared.bucket[bucket[j]] + rank[j]] = at[j];
  }
  __syncthreads();
}

// Distributes the collected points to the warps in runs, which keeps the box of a warp's points
// small; returns that box.
template <int kThreads, int kPoints>
__device__ __forceinline__ PointBox load_buffer(const FpsTiles& tiles, const uint32_t* positions,
                                                uint32_t total, uint32_t last_code,
                                                FpsCandidateBuffer<kPoints>& buffer) {
  constexpr uint32_t kWarps = kThreads / 32;
  const uint32_t per_warp = (total + kWarps - 1) / kWarps;
  const uint32_t begin = threadIdx.x / 32 * per_warp, end = min(begin + per_warp, total);
  PointBox box = PointBox::empty();
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t k = begin + 32 * j + threadIdx.x % 32;
    float4 p = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    buffer.d[j] = -1.0f;
    if (k < end) {
      p = tiles.points[positions[k]];
      buffer.d[j] = __ldcg(&tiles.dist2s[positions[k]]);  // another block may have written it
      box.extend(p);
    }
    buffer.a[j] = p.x;
    buffer.b[j] = p.y;
    buffer.c[j] = p.z;
    buffer.code[j] = min(__float_as_uint(p.w), last_code);  // larger only if clouds overlap
  }
  return warp_box(box);
}

namespace {

// How far below the largest dist2 the buffer reaches; adapted to the number of points collected.
struct BufferDepth {
  float fraction = 0.2f;
  int best = -1;  // bits of about the largest dist2; -1 before the first step
};

// Has all blocks measure from the `count` last samples and fills the buffer with every point whose
// key is at least K, for the K that the depth suggests: as fill_shortlist(), one level up. Returns
// the bits of K's dist2, or 0 if no dist2 above 0 is left. Calls `meanwhile` while the other blocks
// work.
template <int kThreads, int kPoints, class Meanwhile>
__device__ __forceinline__ int fill_buffer(FpsBlockGroup<kThreads, kPoints>& group, int count,
                                           uint32_t last_code, BufferDepth& depth,
                                           Meanwhile meanwhile) {
  constexpr uint32_t kBuffer = kThreads * kPoints;
  uint32_t low = 0, high = last_code, top_code = kNoCode;
  for (int attempt = 0;; ++attempt) {
    const int limit = depth.best < 0
        ? 0x7fffffff
        : max(__float_as_int(__int_as_float(depth.best) * (1.0f - depth.fraction)), 1);
    group.request(count, limit, top_code);
    if (attempt == 0) meanwhile();
    group.collect();
    count = 0;
    const uint32_t total = group.shared.total;
    const int best = group.shared.best;
    __syncthreads();
    if (best <= 0) return 0;
    depth.best = best;
    if (total > 0 && total <= kBuffer) {
      if (total > 2 * kBuffer / 3) {
        depth.fraction *= 0.85f;
      } else if (total < kBuffer / 3) {
        const float factor = total < kBuffer / 16 ? 4.0f : 1.5f;
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
      depth.fraction *= attempt < 4
          ? fminf(0.7f, fmaxf(0.01f, 0.5f * kBuffer / static_cast<float>(total)))
          : 0.0f;
      continue;
    } else {  // more points than fit tie for the largest: bisect their codes
      if (low >= high) return 0;
      depth.fraction = 0.0f;
      high = min(top_code, high);
    }
    top_code = low + (high - low) / 2;
  }
}

// `members` blocks per cloud, whose candidates lie in spatial order in tiles. A round collects the
// points with the largest keys, all those at or above a K, into the registers of the leading block
// (the buffer), which takes samples from the buffer, shortlist by shortlist, while its best key is
// at least K; then all blocks measure their tiles from the samples of the round. Points outside the
// buffer have keys below K, and keys never rise, so the best of the buffer is the best of the
// cloud. Points and distances are read and written once per round of some hundred samples, and most
// tiles are skipped by their boxes.
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
  const int64_t segment = args.points.packed ? cloud.first : int64_t{of_wave} * args.points.rows;
  FpsTiles& tiles = shared.tiles;
  if (threadIdx.x == 0) {
    tiles.points = order.sorted + segment;
    tiles.dist2s = scratch.dist2 + segment;
    tiles.count = min(summary.candidates, cloud.points);
    tiles.lay_out(boxes, tile_room, smallest_tile, member, members);
  }
  __syncthreads();
  tiles.build(initial_dist2(args));
  FpsBlockGroup<kThreads, kPoints> group{shared, scratch.state + of_wave, members - 1};
  if (member > 0) {
    group.follow();
    return;
  }

  if (threadIdx.x < 3) shared.shortlist.count[threadIdx.x] = 0;
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
    if (threadIdx.x == 0) shared.shortlist.sample[staged] = make_float4(q.a, q.b, q.c, 0.0f);
    if (++staged < kLazyRoom) continue;
    __syncthreads();
    group.request(staged, 0x7fffffff, kNoCode);
    group.collect();
    staged = 0;
  }
  __syncthreads();
  ShortlistDepth shortlist_depth;
  BufferDepth buffer_depth;
  int written = s;  // samples; those after it are still staged
  bool exhausted = false;
#pragma unroll 1
  while (s < samples) {
    const int floor = fill_buffer(group, staged, last_code, buffer_depth, [&] {
      write_samples(args, cloud, shared.shortlist, written, s);
      written = s;
    });
    exhausted = floor == 0;
    if (exhausted) break;
    const uint32_t total = shared.total;
    order_buffer(shared, total, tiles.count);
    FpsCandidateBuffer<kPoints> buffer;
    const PointBox box = load_buffer<kThreads>(tiles, shared.buffer, total, last_code, buffer);
    staged = drain_buffer<kThreads, true>(buffer, box, shared.shortlist, floor, last_code,
                                          samples - s, shortlist_depth);
    exhausted = staged == 0;  // only if clouds overlap, from offsets in disorder
    if (exhausted) break;
    buffer_depth.best = floor;
    s += min(staged, samples - s);
  }
  write_samples(args, cloud, shared.shortlist, written, s);
  group.request(-1, 0, 0);
  if (exhausted) finish_exhausted(args, cloud, s, first, scratch.mark + segment);
}

using LazyKernel = void (*)(FpsArgs, SpatialOrder, LazyScratch, uint32_t, uint32_t, uint32_t);

LazyKernel kernel_of(int threads) {
  switch (threads) {
    case 64: return lazy_kernel<64, 1>;  // only for tests, in which every round overflows
    case 512: return lazy_kernel<512, 2>;
    case 1024: return lazy_kernel<1024, 2>;
  }
  return nullptr;
}

}  // namespace

LazyScratch::LazyScratch(const FpsPlan& plan, const SpatialOrder& order, Workspace& workspace)
    : dist2(reinterpret_cast<float*>(order.sort.keys[0])),
      mark(order.sort.keys[1]),
      state(workspace.take<FpsGroupState>(plan.members > 1 ? plan.clouds_at_once : 0)) {}

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
    TORCHVOX_CUDA_CHECK(
        cudaMemsetAsync(scratch.state, 0, order.clouds * sizeof(FpsGroupState), stream));
    const cudaError_t status = launch_with(plan.members);
    // A part of a GPU (MIG, MPS) may have fewer multiprocessors than it says: then one block per
    // cloud.
    if (status != cudaErrorCooperativeLaunchTooLarge && status != cudaErrorNotSupported) {
      return status;
    }
    cudaGetLastError();
  }
  return launch_with(1);
}

}  // namespace torchvox
