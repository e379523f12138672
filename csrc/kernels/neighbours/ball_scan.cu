// SPDX-License-Identifier: Apache-2.0
//
// The points of a cloud in index order, 32 at a time: a ballot gives each hit its place among the
// hits of a query, so order and fill are exact. After Pointnet2's ball query, whose one thread a
// query waits for the sparsest ball of its warp.
#include "csrc/kernels/neighbours/ball_kernels.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 1024;  // points of a cloud in shared memory

// The clouds of the rows [begin, end) of a block: the lowest and the highest.
__device__ __forceinline__ void clouds_of_rows(const BallQueryArgs& args, int64_t begin,
                                               int64_t end, int64_t& low, int64_t& high) {
  if (!args.ragged) {
    low = high = begin / args.queries;
    return;
  }
  __shared__ int lowest, highest;
  if (threadIdx.x == 0) lowest = 0x7fffffff, highest = -1;
  __syncthreads();
  for (int64_t row = begin + threadIdx.x; row < end; row += kThreads) {
    const int b = static_cast<int>(BallQuery::of(args, row).cloud);
    if (b >= 0) {
      atomicMin(&lowest, b);
      atomicMax(&highest, b);
    }
  }
  __syncthreads();
  low = lowest, high = highest;
}

// A warp has kQueries queries at a time, its lanes 32 points; a block shares tiles of points. The
// distance to a point is computed once for all radii.
template <int kQueries, int kRadii>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const __grid_constant__ BallQueryArgs args, int64_t blocks_per_cloud) {
  constexpr int kRows = kWarps * kQueries;
  __shared__ float4 tile[kTile];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t begin, end;
  if (args.ragged) {
    begin = int64_t{blockIdx.x} * kRows;
    end = min(begin + kRows, args.queries);
  } else {
    const int64_t b = blockIdx.x / blocks_per_cloud;
    begin = b * args.queries + (blockIdx.x - b * blocks_per_cloud) * kRows;
    end = min(begin + kRows, (b + 1) * args.queries);
  }

  Point3 q[kQueries];
  int64_t cloud_of[kQueries];
  BallTest<float> test[kRadii];
  int hits[kQueries][kRadii], first[kQueries][kRadii];
  float outer = -1.0f;
#pragma unroll
  for (int r = 0; r < kRadii; ++r) {
    test[r] = BallTest<float>::of(args, r);
    if (r < args.radii) outer = fmaxf(outer, test[r].outer);
  }
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
    const int64_t row = begin + warp * kQueries + j;
    cloud_of[j] = -1;
    q[j] = {0, 0, 0};
    if (row < end) {
      const BallQuery query = BallQuery::of(args, row);
      cloud_of[j] = query.cloud;
      if (query.cloud >= 0) q[j] = load_row(args, args.query, query.base);
    }
#pragma unroll
    for (int r = 0; r < kRadii; ++r) hits[j][r] = 0, first[j][r] = -1;
  }

  int64_t low, high;
  clouds_of_rows(args, begin, end, low, high);
  for (int64_t b = low; b <= high; ++b) {
    const BallCloud cloud = BallCloud::of(args, b);
    for (int64_t base = 0; base < cloud.points; base += kTile) {
      const int count = static_cast<int>(min(int64_t{kTile}, cloud.points - base));
      bool open[kQueries], any_open = false;
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
        open[j] = false;
#pragma unroll
        for (int r = 0; r < kRadii; ++r) {
          open[j] |= r < args.radii && cloud_of[j] == b && hits[j][r] < args.radius[r].k;
        }
        any_open |= open[j];
      }
      if (!__syncthreads_or(any_open)) break;
      for (int i = threadIdx.x; i < ceil_div(count, 32) * 32; i += kThreads) {
        const float nan = __int_as_float(0x7fc00000);
        Point3 p{nan, nan, nan};
        if (i < count) p = load_row(args, args.points, cloud.base + (base + i) * args.point_stride);
        tile[i] = {p.a, p.b, p.c, 0.0f};
      }
      __syncthreads();
      for (int step = 0; step < count && any_open; step += 32) {
        const float4 p = tile[step + lane];
#pragma unroll
        for (int j = 0; j < kQueries; ++j) {
          if (!open[j]) continue;
          const float d = dist2(p.x - q[j].a, p.y - q[j].b, p.z - q[j].c);
          if (!__any_sync(kFullWarp, d <= outer)) continue;
          const int64_t row = begin + warp * kQueries + j;
          bool still = false;
#pragma unroll
          for (int r = 0; r < kRadii; ++r) {
            if (r >= args.radii) continue;
            const bool hit = test[r](d);
            const unsigned mask = __ballot_sync(kFullWarp, hit);
            if (mask != 0) {
              const int64_t at = base + step;
              if (hits[j][r] == 0) first[j][r] = static_cast<int>(at) + __ffs(mask) - 1;
              const int place = hits[j][r] + __popc(mask & ((1u << lane) - 1));
              if (hit && place < args.radius[r].k) {
                write_hit(args, cloud, row, r, place, at + lane, d);
              }
              const int64_t all = hits[j][r] + __popc(mask);
              hits[j][r] = static_cast<int>(min(all, args.radius[r].k));
            }
            still |= hits[j][r] < args.radius[r].k;
          }
          open[j] = still;
          if (!still) {
            any_open = false;
#pragma unroll
            for (int other = 0; other < kQueries; ++other) any_open |= open[other];
          }
        }
      }
    }
  }

#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
    const int64_t row = begin + warp * kQueries + j;
    if (row >= end) continue;
    BallCloud cloud{0, 0, 0, 0};
    if (cloud_of[j] >= 0) cloud = BallCloud::of(args, cloud_of[j]);
#pragma unroll
    for (int r = 0; r < kRadii; ++r) {
      if (r >= args.radii) continue;
      const int32_t fill = fill_index(args, cloud, first[j][r]);
      write_fill<float>(args, row, r, hits[j][r] + lane, 32, fill);
      if (lane == 0) args.count[row * args.counts + r] = hits[j][r];
    }
  }
}

// A warp a query, its points straight from memory: any number of axes, any type.
template <class C>
__global__ void __launch_bounds__(kThreads)
    generic_kernel(const __grid_constant__ BallQueryArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t row = global_thread() / 32;
  if (row >= args.rows()) return;
  const BallQuery query = BallQuery::of(args, row);
  BallCloud cloud{0, 0, 0, 0};
  if (query.cloud >= 0) cloud = BallCloud::of(args, query.cloud);
  for (int r = 0; r < args.radii; ++r) {
    const auto test = BallTest<C>::of(args, r);
    const int64_t k = args.radius[r].k;
    int64_t hits = 0, first = -1;
    for (int64_t base = 0; base < cloud.points && hits < k; base += 32) {
      C d = 0;
      bool hit = false;
      if (base + lane < cloud.points) {
        d = dist2_rows<C>(args, cloud.base + (base + lane) * args.point_stride, query.base);
        hit = test(d);
      }
      const unsigned mask = __ballot_sync(kFullWarp, hit);
      if (mask == 0) continue;
      if (hits == 0) first = base + __ffs(mask) - 1;
      const int64_t place = hits + __popc(mask & ((1u << lane) - 1));
      if (hit && place < k) write_hit(args, cloud, row, r, place, base + lane, d);
      hits = min(hits + __popc(mask), k);
    }
    write_fill<C>(args, row, r, hits + lane, 32, fill_index(args, cloud, first));
    if (lane == 0) args.count[row * args.counts + r] = static_cast<int32_t>(hits);
  }
}

template <int kQueries, int kRadii>
cudaError_t launch_scan(const BallQueryArgs& args, const CudaContext& context) {
  constexpr int kRows = kWarps * kQueries;
  const int64_t per_cloud = ceil_div<int64_t>(args.queries, kRows);
  const int64_t blocks = args.ragged ? per_cloud : per_cloud * args.clouds;
  scan_kernel<kQueries, kRadii>
      <<<static_cast<unsigned>(blocks), kThreads, 0, context.stream>>>(args, per_cloud);
  return cudaGetLastError();
}

}  // namespace

cudaError_t launch_ball_scan(const BallQueryArgs& args, const CudaContext& context) {
  if (args.radii > 1) return launch_scan<2, kMostRadii>(args, context);
  // Few queries: one a warp, so that more multiprocessors have some.
  const bool few = args.rows() < int64_t{32} * kWarps * context.target.multiprocessors;
  return few ? launch_scan<1, 1>(args, context) : launch_scan<4, 1>(args, context);
}

cudaError_t launch_ball_generic(const BallQueryArgs& args, const CudaContext& context) {
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(args.rows(), kWarps));
  if (args.dtype == DType::kDouble) {
    generic_kernel<double><<<blocks, kThreads, 0, context.stream>>>(args);
  } else {
    generic_kernel<float><<<blocks, kThreads, 0, context.stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace torchvox
