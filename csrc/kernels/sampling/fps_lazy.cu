// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/fps_kernels.cuh"
#include "csrc/kernels/sampling/fps_tiles.cuh"
#include "csrc/kernels/sampling/fps_window.cuh"

namespace torchvox {
namespace {

constexpr int kRoom = 1024;  // samples of a round

// One block per cloud, whose candidates lie in spatial order in tiles. A round gathers the points
// with the largest keys, all those at or above some K, into the block's registers (the pool), takes
// samples from the pool by windows while its best key is at least K, then measures the tiles from
// all samples of the round. Points outside the pool have keys below K and only fall, so the pool's
// best is the cloud's. Points and distances are read and written by a few passes, some hundred
// samples each, in which most tiles are skipped by their boxes.
template <int kThreads, int kPoints>
__global__ void __launch_bounds__(kThreads, 1)
    lazy_kernel(const __grid_constant__ FpsArgs args, const __grid_constant__ SpatialOrder order,
                const LazyScratch scratch, uint32_t smallest_tile, uint32_t tile_room) {
  extern __shared__ float boxes[];
  __shared__ FpsWindow<kRoom> shared;
  __shared__ uint32_t pool_at[kThreads * kPoints];
  const FpsCloud cloud = FpsCloud::of(args, order.first_cloud + blockIdx.x);
  if (int64_t{cloud.tie.space()} <= order.above) return;  // a block kernel's cloud
  fill_unused(args, cloud);
  if (cloud.samples == 0) return;

  const CloudSummary summary = order.summaries[blockIdx.x];
  const int64_t segment = args.ragged ? cloud.first : int64_t{blockIdx.x} * args.capacity;
  COUNT(15, clock64() - fps_profile[15]);
  FpsTiles tiles(boxes, tile_room);
  tiles.points = scratch.sorted + segment;
  tiles.dist2s = scratch.dist2 + segment;
  tiles.count = min(summary.candidates, cloud.points);
  tiles.build(smallest_tile, initial_dist2(args));
  const int64_t first = tiles.count == 0 ? -1 : int64_t{cloud.tie.index(~summary.first)};
  const uint32_t last_code = cloud.tie.space() - 1;
  if (threadIdx.x < 3) shared.count[threadIdx.x] = 0;

  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  uint32_t cursor = 0;
  int s = 0;
  while (s < starts) {
    int staged = 0;
    for (; s < starts && staged < kRoom; ++s) {
      const int64_t i = take_start(args, cloud, s, first, cursor);
      if (i < 0) continue;
      const Point3 q = load_point(args, cloud, static_cast<uint32_t>(i));
      if (threadIdx.x == 0) shared.sample[staged] = make_float4(q.a, q.b, q.c, 0.0f);
      ++staged;
    }
    __syncthreads();
    tiles.measure_from(shared.sample, staged);
    __syncthreads();
  }

  MARK(0);
  WindowDepth depth;
  float pool_depth = 0.2f;
  bool exhausted = false;
#pragma unroll 1
  while (s < samples) {
    const int largest = block_max<kThreads>(tiles.best(), shared.per_warp);
    exhausted = largest <= 0;
    if (exhausted) break;
    int floor;
    const uint32_t gathered = tiles.gather<kThreads * kPoints>(pool_at, largest, last_code,
                                                               pool_depth, floor);
    MARK(1);
    COUNT(12, 1);
    COUNT(14, gathered);
    FpsPool<kPoints> pool;
    const FpsBox box = load_pool<kThreads>(tiles, pool_at, gathered, pool);
    MARK(2);
    int staged = 0;
    int of_warp = warp_max_signed(pool.best());
#pragma unroll 1
    while (s + staged < samples && staged <= kRoom - kWindow) {
      const int best = block_max<kThreads>(of_warp, shared.per_warp);
      MARK(3);
      if (best < floor) break;
      int limit;
      const int found = fill_window(pool, shared, best, floor, last_code, depth, limit);
      MARK(4);
      compare_window(shared, found, limit);
      MARK(5);
      const int taken = take_samples(shared, found, staged);
      MARK(6);
      COUNT(11, 1);
      COUNT(13, found);
      // One lane a sample: does it reach this warp's points?
      const int lane = threadIdx.x % 32;
      const bool near =
          lane < taken && box.bound(shared.sample[staged + lane]) < __int_as_float(of_warp);
      unsigned hits = __ballot_sync(kFullWarp, near);
      if (hits) {
        while (hits) {
          pool.measure_from(shared.sample[staged + __ffs(hits) - 1]);
          hits &= hits - 1;
        }
        of_warp = warp_max_signed(pool.best());
      }
      staged += taken;
      MARK(7);
    }
    exhausted = staged == 0;  // never, but for clouds that overlap, from offsets in disorder
    if (exhausted) break;
    const int end = min(s + staged, samples);
    write_samples(args, cloud, shared, s, end);
    s = end;
    if (s >= samples) break;
    MARK(8);
    tiles.measure_from(shared.sample, staged);
    __syncthreads();
    MARK(9);
  }
  if (exhausted) finish_exhausted(args, cloud, s, first, scratch.mark + segment);
}

using LazyKernel = void (*)(FpsArgs, SpatialOrder, LazyScratch, uint32_t, uint32_t);

LazyKernel kernel_of(int threads, int points) {
  switch (threads * 16 + points) {
    case 64 * 16 + 1: return lazy_kernel<64, 1>;
    case 256 * 16 + 4: return lazy_kernel<256, 4>;
    case 512 * 16 + 2: return lazy_kernel<512, 2>;
    case 512 * 16 + 4: return lazy_kernel<512, 4>;
    case 1024 * 16 + 1: return lazy_kernel<1024, 1>;
    case 1024 * 16 + 2: return lazy_kernel<1024, 2>;
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_fps_lazy(const FpsArgs& args, const FpsPlan& plan, const SpatialOrder& order,
                            cudaStream_t stream) {
  if (order.clouds == 0) return cudaSuccess;
  const LazyKernel kernel = kernel_of(plan.large_threads, plan.pool_points);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  // The sort is over: its buffers hold the distances, and the marks of exhausted clouds. Only the
  // sorted positions are still read, and not by this kernel.
  const LazyScratch scratch{order.sorted, reinterpret_cast<float*>(order.sort.keys[0]),
                            order.sort.keys[1]};
  const int bytes = static_cast<int>(FpsTiles::bytes(plan.tile_room));
  TORCHVOX_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  kernel<<<static_cast<unsigned>(order.clouds), plan.large_threads, bytes, stream>>>(
      args, order, scratch, plan.tile, plan.tile_room);
  return cudaGetLastError();
}

}  // namespace torchvox
