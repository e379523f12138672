// SPDX-License-Identifier: Apache-2.0
//
// knn that measures every point. A block reads the points once, 1,024 at a time into shared memory;
// lists of neighbors stay in registers.
#include "csrc/kernels/neighbors/knn/kernels.cuh"
#include "csrc/kernels/neighbors/knn/list.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kStaged = 1024;  // points in shared memory at a time
constexpr int kQueries = 2;  // per warp: they share the reads
constexpr int kPerBlock = kThreads / 32 * kQueries;
constexpr int kFew = static_cast<int>(kFewListed);
constexpr int kFewThreads = 128;
constexpr int kTogether = 4;  // points that a thread measures before it compares any

// The axes of a query or point; NaN if it is not finite, so that every distance to it is NaN.
__device__ __forceinline__ Point3 load_or_nan(const KnnArgs& args, const void* rows, int64_t at) {
  Point3 p = load_axes(args, rows, at);
  if (!is_finite(p)) p.a = NAN;
  return p;
}
__device__ __forceinline__ Point3 load_query(const KnnArgs& args, int64_t cloud, int64_t row) {
  if (row >= args.query.rows) return {NAN, 0.0f, 0.0f};
  const CloudBatch::Place query = args.query.place(cloud, row);
  return query.cloud < 0 ? Point3{NAN, 0.0f, 0.0f}
                         : load_or_nan(args, args.query.data, query.element);
}

// Reads the points from `base` on into shared memory, padded with NaN to a multiple of 32; returns
// how many. Called by the whole block; a barrier before and after.
template <class Put>
__device__ __forceinline__ uint32_t stage_points(const KnnArgs& args, const KnnCloud& cloud,
                                                 uint32_t base, Put put) {
  const uint32_t staged = min(cloud.points - base, uint32_t{kStaged});
  const uint32_t padded = ceil_div(staged, 32u) * 32;
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < padded; i += blockDim.x) {
    const int64_t at = cloud.base + int64_t{base + i} * args.points.row_stride;
    put(i, i < staged ? load_or_nan(args, args.points.data, at) : Point3{NAN, 0.0f, 0.0f});
  }
  __syncthreads();
  return padded;
}

// Up to kFew neighbors. One thread per query: reads all points of its cloud through shared memory,
// keeps its list in registers, writes its row. Points come in ascending order of their index, so
// that only a smaller distance replaces one. Slots beyond k hold 0 and are never replaced.
template <int kNorm>
__global__ void __launch_bounds__(kFewThreads)
    few_kernel(const __grid_constant__ KnnArgs args, unsigned blocks_per_cloud) {
  __shared__ float4 points[kStaged];
  const int64_t number = blockIdx.x / blocks_per_cloud;
  const int64_t row = int64_t{blockIdx.x % blocks_per_cloud} * kFewThreads + threadIdx.x;
  const KnnCloud cloud = KnnCloud::of(args, number);
  const int unused = kFew - static_cast<int>(args.k);
  const Point3 q = load_query(args, number, row);
  uint32_t bits[kFew], index[kFew];
#pragma unroll
  for (int j = 0; j < kFew; ++j) bits[j] = j < unused ? 0 : kInfinityBits + 1, index[j] = 0;

  for (uint32_t base = 0; base < cloud.points; base += kStaged) {
    const uint32_t staged = stage_points(args, cloud, base, [&](uint32_t i, const Point3& p) {
      points[i] = make_float4(p.a, p.b, p.c, 0.0f);
    });
    for (uint32_t i = 0; i < staged; i += kTogether) {
      uint32_t d[kTogether], least = kNoCode;
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        const float4 p = points[i + t];
        d[t] = float_bits(norm_of<kNorm>(p.x - q.a, p.y - q.b, p.z - q.c));
        least = min(least, d[t]);
      }
      if (least >= bits[kFew - 1]) continue;
#pragma unroll
      for (int t = 0; t < kTogether; ++t) {
        if (d[t] >= bits[kFew - 1]) continue;
#pragma unroll
        for (int j = kFew - 1; j >= 0; --j) {  // those beyond the new one move up one place
          if (d[t] >= bits[j]) continue;
          const bool moves = j > 0 && d[t] < bits[j > 0 ? j - 1 : 0];
          bits[j] = moves ? bits[j > 0 ? j - 1 : 0] : d[t];
          index[j] = moves ? index[j > 0 ? j - 1 : 0] : base + i + t;
        }
      }
    }
  }
  if (row >= args.query.rows) return;
#pragma unroll
  for (int j = 0; j < kFew; ++j) {
    if (j < unused) continue;
    const int64_t out = number * args.query.rows + row;
    if (bits[j] > kInfinityBits) {
      write_none<float>(args, out, j - unused);
    } else {
      write_neighbor(args, out, j - unused, bit_cast<float>(bits[j]), index[j], cloud.index_base);
    }
  }
}

// More neighbors. One warp per kQueries queries, one lane per point: reads all points through
// shared memory, one array per coordinate, and writes the rows.
template <int kRun, int kNorm>
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
    q[j] = load_query(args, number, begin + j);
  }
  for (uint32_t base = 0; base < cloud.points; base += kStaged) {
    const uint32_t staged = stage_points(args, cloud, base, [&](uint32_t i, const Point3& p) {
      a[i] = p.a, b[i] = p.b, c[i] = p.c;
    });
    for (uint32_t i = lane; i < staged; i += 32) {
      const Point3 p{a[i], b[i], c[i]};
#pragma unroll
      for (int j = 0; j < kQueries; ++j)
        list[j].take(knn_key(norm_of<kNorm>(p, q[j]), base + i), k);
    }
  }
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
    if (begin + j < args.query.rows) {
      write_list(args, number * args.query.rows + begin + j, list[j], cloud.points,
                 cloud.index_base);
    }
  }
}

}  // namespace

cudaError_t launch_knn_scan(const KnnArgs& args, const CudaContext& context) {
  const bool few = args.k <= kFew;
  const unsigned per_cloud =
      grid_x(ceil_div<int64_t>(args.query.rows, few ? kFewThreads : kPerBlock));
  const unsigned blocks = grid_x(args.points.clouds * per_cloud);
  return with_norm(args, [&](auto norm) {
    if (few) {
      return launch_blocks(few_kernel<norm>, blocks, kFewThreads, context.stream, args, per_cloud);
    }
    return with_list_run(args.k, [&](auto run) {
      return launch_blocks(scan_kernel<run, norm>, blocks, kThreads, context.stream, args,
                           per_cloud);
    });
  });
}

}  // namespace torchvox
