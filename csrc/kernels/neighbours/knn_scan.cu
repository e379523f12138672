// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbours/knn_kernels.cuh"
#include "csrc/kernels/neighbours/knn_list.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kStaged = 1024;  // points in shared memory at a time
constexpr int kQueries = 2;  // of a warp: they share the reads
constexpr int kPerBlock = kThreads / 32 * kQueries;

// Batched small clouds: a block takes some queries of one cloud and measures every point, a lane a
// point. Points pass through shared memory, one coordinate after the other, as NaN where there is
// none; lists stay in registers.
template <int kRun>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const __grid_constant__ KnnArgs args, unsigned blocks_per_cloud) {
  __shared__ float a[kStaged], b[kStaged], c[kStaged];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t number = blockIdx.x / blocks_per_cloud;
  const int64_t begin =
      int64_t{blockIdx.x % blocks_per_cloud} * kPerBlock + int64_t{warp} * kQueries;
  const KnnCloud cloud = KnnCloud::of(args, number);
  const int k = static_cast<int>(args.k);
  KnnList<kRun> list[kQueries];
  Point3 q[kQueries];
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
    list[j].clear(k);
    q[j].a = NAN;
    if (begin + j >= args.rows) continue;
    const KnnQuery query = KnnQuery::of(args, number * args.rows + begin + j);
    if (query.cloud < 0) continue;
    q[j] = load_axes(args, args.query, query.at);
    if (!is_finite(q[j])) q[j].a = NAN;
  }

  for (uint32_t base = 0; base < cloud.points; base += kStaged) {
    const uint32_t staged = min(cloud.points - base, uint32_t{kStaged});
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < ceil_div(staged, 32u) * 32; i += kThreads) {
      Point3 p{NAN, 0.0f, 0.0f};
      if (i < staged) {
        p = load_axes(args, args.points, cloud.base + int64_t{base + i} * args.point_stride);
        if (!is_finite(p)) p.a = NAN;
      }
      a[i] = p.a, b[i] = p.b, c[i] = p.c;
    }
    __syncthreads();
    for (uint32_t i = lane; i < ceil_div(staged, 32u) * 32; i += 32) {
      const Point3 p{a[i], b[i], c[i]};
#pragma unroll
      for (int j = 0; j < kQueries; ++j) list[j].take(knn_key(dist2(p, q[j]), base + i), k);
    }
  }
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
    if (begin + j < args.rows) {
      write_list(args, number * args.rows + begin + j, list[j], cloud.points, cloud.index_base);
    }
  }
}

}  // namespace

cudaError_t launch_knn_scan(const KnnArgs& args, const CudaContext& context) {
  const int64_t blocks_per_cloud = ceil_div<int64_t>(args.rows, kPerBlock);
  const int64_t blocks = args.clouds * blocks_per_cloud;
  with_list_run(args.k, [&](auto run) {
    scan_kernel<run><<<static_cast<unsigned>(blocks), kThreads, 0, context.stream>>>(
        args, static_cast<unsigned>(blocks_per_cloud));
  });
  return cudaGetLastError();
}

}  // namespace torchvox
