// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/fps_kernels.cuh"
#include "csrc/kernels/sampling/fps_window.cuh"

namespace torchvox {
namespace {

// Half the width and the room of the lazy kernel's: small clouds have less to offer at a time.
using Window = FpsWindow<1, 256>;

// One block per cloud. Thread t keeps the points of the tie codes t + j * kThreads with their
// running minimum distances in registers. A step takes 10 to 30 samples out of one window and
// measures every point from all of them: four barriers and no global access.
template <int kThreads, int kPoints>
__global__ void __launch_bounds__(kThreads)
    block_kernel(const __grid_constant__ FpsArgs args, int64_t above, int64_t room) {
  extern __shared__ uint32_t mark[];  // [room], of exhausted clouds
  __shared__ Window shared;
  const FpsCloud cloud = FpsCloud::of(args, blockIdx.x);
  const int64_t space = cloud.tie.space();
  if (space <= above || space > room) return;  // another kernel's cloud
  fill_unused(args, cloud);
  if (cloud.samples == 0) return;

  COUNT(15, clock64() - fps_profile[15]);
  FpsPool<kPoints> pool;
  const float initial = initial_dist2(args);
  uint32_t first_code = kNoCode;
#pragma unroll
  for (int j = 0; j < kPoints; ++j) {
    const uint32_t code = threadIdx.x + j * kThreads;
    pool.code[j] = code;
    pool.a[j] = pool.b[j] = pool.c[j] = 0.0f;
    pool.d[j] = -1.0f;
    const uint32_t i = code < space ? cloud.tie.index(code) : cloud.points;
    if (i >= cloud.points) continue;
    const Point3 p = load_point(args, cloud, i);
    if (!is_candidate(args, p)) continue;
    pool.a[j] = p.a;
    pool.b[j] = p.b;
    pool.c[j] = p.c;
    pool.d[j] = initial;
    first_code = min(first_code, code);
  }
  if (threadIdx.x < 3) shared.count[threadIdx.x] = 0;
  first_code = block_min(first_code);
  const int64_t first = first_code == kNoCode ? -1 : int64_t{cloud.tie.index(first_code)};

  // The loop over samples is kept free of everything rare: calls in it would move the points of a
  // thread from registers to the stack.
  const int samples = static_cast<int>(cloud.samples);
  const int starts = static_cast<int>(args.starts < samples ? args.starts : samples);
  uint32_t cursor = 0;
  int s = 0;
#pragma unroll 1
  for (; s < starts; ++s) {
    const int64_t i = take_start(args, cloud, s, first, cursor);
    if (i < 0) continue;
    const Point3 q = load_point(args, cloud, static_cast<uint32_t>(i));
    pool.measure_from(make_float4(q.a, q.b, q.c, 0.0f));
  }
  MARK(0);
  WindowDepth depth;
  bool exhausted = false;
#pragma unroll 1
  while (s < samples && !exhausted) {
    int staged = 0;
#pragma unroll 1
    while (s + staged < samples && staged <= Window::kRoom - Window::kPoints) {
      const int best = block_max<kThreads>(warp_max_signed(pool.best()), shared.per_warp);
      MARK(3);
      exhausted = best <= 0;
      if (exhausted) break;
      int limit;
      const int found = fill_window(pool, shared, best, 0, static_cast<uint32_t>(space) - 1, depth,
                                    limit);
      MARK(4);
      compare_window(shared, found, limit);
      MARK(5);
      const int taken = take_samples(shared, found, staged);
      MARK(6);
      COUNT(11, 1);
      COUNT(13, found);
#pragma unroll 4
      for (int r = 0; r < taken; ++r) pool.measure_from(shared.sample[staged + r]);
      staged += taken;
      MARK(7);
    }
    const int end = min(s + staged, samples);
    write_samples(args, cloud, shared, s, end);
    s = end;
    MARK(8);
  }
  if (exhausted) finish_exhausted(args, cloud, s, first, mark);
}

using BlockKernel = void (*)(FpsArgs, int64_t, int64_t);

template <int kThreads>
BlockKernel kernel_of(int points_per_thread) {
  switch (points_per_thread) {
    case 1: return block_kernel<kThreads, 1>;
    case 2: return block_kernel<kThreads, 2>;
    case 4: return block_kernel<kThreads, 4>;
    case 8: return block_kernel<kThreads, 8>;
    case 16: return block_kernel<kThreads, 16>;
  }
  return nullptr;
}

BlockKernel kernel_of(const FpsPlan::BlockClass& block) {
  switch (block.threads) {
    case 32: return kernel_of<32>(block.points_per_thread);
    case 64: return kernel_of<64>(block.points_per_thread);
    case 128: return kernel_of<128>(block.points_per_thread);
    case 256: return kernel_of<256>(block.points_per_thread);
    case 512: return kernel_of<512>(block.points_per_thread);
    case 1024: return block.points_per_thread <= 8 ? kernel_of<1024>(block.points_per_thread) : nullptr;
  }
  return nullptr;
}

}  // namespace

cudaError_t launch_fps_block(const FpsArgs& args, const FpsPlan::BlockClass& block, int64_t above,
                             cudaStream_t stream) {
  const BlockKernel kernel = kernel_of(block);
  if (kernel == nullptr) return cudaErrorInvalidValue;
  const int bytes = static_cast<int>(sizeof(uint32_t) * block.room());
  kernel<<<static_cast<unsigned>(args.clouds), block.threads, bytes, stream>>>(args, above,
                                                                               block.room());
  return cudaGetLastError();
}

}  // namespace torchvox
