// SPDX-License-Identifier: Apache-2.0
//
// Tests the points of a cloud in index order, 32 at a time: a ballot gives each hit its place among
// the hits of a query, so order and fill are exact. (Pointnet2's ball query has one thread per
// query, which waits for the sparsest ball of its warp.)
#include "csrc/kernels/neighbors/ball_query/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kTile = 1024;  // points of a cloud in shared memory
constexpr int kStride = 256;  // points between two checks whether all queries have their hits

// The lowest and the highest cloud of the packed rows [begin, end) of a block.
__device__ __forceinline__ void clouds_of_rows(const BallQueryArgs& args, int64_t begin,
                                               int64_t end, int& low, int& high) {
  __shared__ int lowest, highest;
  if (threadIdx.x == 0) lowest = 0x7fffffff, highest = -1;
  __syncthreads();
  for (int64_t row = begin + threadIdx.x; row < end; row += kThreads) {
    const int b = static_cast<int>(args.query.find(row).cloud);
    if (b >= 0) {
      atomicMin(&lowest, b);
      atomicMax(&highest, b);
    }
  }
  __syncthreads();
  low = lowest, high = highest;
}

// The queries of a warp, in shared memory, so that one loop over them writes the hits and its code
// and registers exist only once.
template <int kQueries, int kRadii>
struct WarpRows {
  Point3 q[kQueries];
  int cloud[kQueries];
  BallRow ball[kQueries][kRadii];
  unsigned word[kQueries][kRadii][32];
};

// Tests the points of a tile, kStride at a time, until every query has the `missing` number of
// hits. The tile is padded with points that are not hits.
template <bool kHole, int kQueries, int kRadii>
__device__ __forceinline__ void test_tile(const float4* tile, int count, int lane,
                                          const Point3 (&q)[kQueries],
                                          const BallTest<float> (&test)[kRadii],
                                          const int (&missing)[kQueries][kRadii],
                                          WarpRows<kQueries, kRadii>& rows) {
  unsigned word[kQueries][kRadii] = {};
  for (int begin = 0; begin < count; begin += kStride) {
#pragma unroll 2
    for (int i = 0; i < kStride; i += 32) {
      const float4 p = tile[begin + i + lane];
      const bool mine = lane == (begin + i) / 32;
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
        const float d = dist2(p.x - q[j].a, p.y - q[j].b, p.z - q[j].c);
#pragma unroll
        for (int r = 0; r < kRadii; ++r) {
          const bool hit = kHole ? test[r](d) : d <= test[r].outer;
          const unsigned mask = __ballot_sync(kFullWarp, hit);
          if (mine) word[j][r] = mask;
        }
      }
    }
    bool open = false;
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
#pragma unroll
      for (int r = 0; r < kRadii; ++r)
        open |=
            static_cast<int>(warp_sum(static_cast<uint32_t>(__popc(word[j][r])))) < missing[j][r];
    }
    if (!open) break;
  }
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
#pragma unroll
    for (int r = 0; r < kRadii; ++r) rows.word[j][r][lane] = word[j][r];
  }
}

// One warp per kQueries queries, one lane per point: reads the points of the clouds through tiles
// in shared memory, writes the rows of its queries. The distance to a point is computed once for
// all radii.
template <int kQueries, int kRadii>
__global__ void __launch_bounds__(kThreads)
    scan_kernel(const __grid_constant__ BallQueryArgs args, int64_t blocks_per_cloud) {
  constexpr int kRows = kWarps * kQueries;
  __shared__ float4 tile[kTile];
  __shared__ WarpRows<kQueries, kRadii> all_rows[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  WarpRows<kQueries, kRadii>& rows = all_rows[warp];
  int64_t begin, end;
  int low, high;
  if (args.points.packed) {
    begin = int64_t{blockIdx.x} * kRows;
    end = min(begin + kRows, args.query.rows);
    clouds_of_rows(args, begin, end, low, high);
  } else {
    const int64_t b = blockIdx.x / static_cast<unsigned>(blocks_per_cloud);
    begin = b * args.query.rows + (blockIdx.x - b * blocks_per_cloud) * kRows;
    end = min(begin + kRows, (b + 1) * args.query.rows);
    low = high = static_cast<int>(b);
  }
  begin += warp * kQueries;
  const int queries = static_cast<int>(max(int64_t{0}, min(int64_t{kQueries}, end - begin)));

  if (lane < kQueries) {
    CloudBatch::Place query{-1, 0};
    if (lane < queries) {
      query = args.points.packed ? args.query.find(begin + lane)
                                 : args.query.place(low, begin + lane - low * args.query.rows);
    }
    rows.cloud[lane] = static_cast<int>(query.cloud);
    rows.q[lane] = query.cloud >= 0 ? load_row(args, args.query.data, query.element)
                                    : Point3{0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int r = 0; r < kRadii; ++r) rows.ball[lane][r] = {0, -1};
  }
  __syncwarp();
  Point3 q[kQueries];
#pragma unroll
  for (int j = 0; j < kQueries; ++j) q[j] = rows.q[j];
  BallTest<float> test[kRadii];
  bool hole = false;
#pragma unroll
  for (int r = 0; r < kRadii; ++r) {
    test[r] = BallTest<float>::of(args, r);
    if (r >= args.radii) test[r].outer = -1.0f;
    hole |= test[r].has_hole();
  }

  for (int b = low; b <= high; ++b) {
    const BallCloud cloud = BallCloud::of(args, b);
    for (int64_t base = 0; base < cloud.points; base += kTile) {
      const int count = static_cast<int>(min(int64_t{kTile}, cloud.points - base));
      int missing[kQueries][kRadii];
      bool open = false;
#pragma unroll
      for (int j = 0; j < kQueries; ++j) {
#pragma unroll
        for (int r = 0; r < kRadii; ++r) {
          missing[j][r] = 0;
          if (rows.cloud[j] == b && r < args.radii) {
            missing[j][r] = static_cast<int>(args.most_hits(begin + j, r)) - rows.ball[j][r].hits;
          }
          open |= missing[j][r] > 0;
        }
      }
      if (!__syncthreads_or(open)) break;
      for (int i = threadIdx.x; i < ceil_div(count, kStride) * kStride; i += kThreads) {
        const float nan = __int_as_float(0x7fc00000);
        Point3 p{nan, nan, nan};
        if (i < count)
          p = load_row(args, args.points.data, cloud.base + (base + i) * args.points.row_stride);
        tile[i] = {p.a, p.b, p.c, 0.0f};
      }
      __syncthreads();
      if (!open) continue;
      if (hole) {
        test_tile<true>(tile, count, lane, q, test, missing, rows);
      } else {
        test_tile<false>(tile, count, lane, q, test, missing, rows);
      }
      __syncwarp();
#pragma unroll 1
      for (int jr = 0; jr < kQueries * args.radii; ++jr) {
        const int j = jr / args.radii, r = jr % args.radii;
        if (rows.cloud[j] != b) continue;
        BallRow ball = rows.ball[j][r];
        ball.write(args, cloud, rows.q[j], begin + j, r, lane, rows.word[j][r][lane], base,
                   [&](int i) { return Point3{tile[i].x, tile[i].y, tile[i].z}; });
        __syncwarp();
        if (lane == 0) rows.ball[j][r] = ball;
      }
      __syncwarp();
    }
  }

#pragma unroll 1
  for (int jr = 0; jr < queries * args.radii; ++jr) {
    const int j = jr / args.radii, r = jr % args.radii;
    const BallCloud cloud = BallCloud::of(args, rows.cloud[j]);
    rows.ball[j][r].finish(args, cloud, begin + j, r, lane);
  }
}

// Any number of axes, any type. One warp per query: reads the points straight from memory, writes
// its rows.
template <class C>
__global__ void __launch_bounds__(kThreads)
    generic_kernel(const __grid_constant__ BallQueryArgs args) {
  const int lane = threadIdx.x % 32;
  const int64_t row = global_thread() / 32;
  if (row >= args.rows()) return;
  const CloudBatch::Place query = args.query.find(row);
  const BallCloud cloud = BallCloud::of(args, query.cloud);
  for (int r = 0; r < args.radii; ++r) {
    const auto test = BallTest<C>::of(args, r);
    const int64_t k = args.most_hits(row, r);
    int64_t hits = 0, first = -1;
    for (int64_t base = 0; base < cloud.points && hits < k; base += 32) {
      C d = 0;
      bool hit = false;
      if (base + lane < cloud.points) {
        d = dist2_rows<C>(args, cloud.base + (base + lane) * args.points.row_stride, query.element);
        hit = test(d);
      }
      const unsigned mask = __ballot_sync(kFullWarp, hit);
      if (mask == 0) continue;
      if (hits == 0) first = base + __ffs(mask) - 1;
      const int64_t place = hits + __popc(mask & lanes_below(lane));
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
  const int64_t per_cloud = ceil_div<int64_t>(args.query.rows, kRows);
  const int64_t blocks = args.points.packed ? per_cloud : per_cloud * args.points.clouds;
  return launch_blocks(scan_kernel<kQueries, kRadii>, grid_x(blocks), kThreads, context.stream,
                       args, per_cloud);
}

}  // namespace

cudaError_t launch_ball_scan(const BallQueryArgs& args, const CudaContext& context) {
  if (args.radii > 1) return launch_scan<2, kMostRadii>(args, context);
  // Few queries: one per warp, so that more multiprocessors have work.
  const bool few = args.rows() < int64_t{64} * context.target.multiprocessors;
  return few ? launch_scan<1, 1>(args, context) : launch_scan<4, 1>(args, context);
}

cudaError_t launch_ball_generic(const BallQueryArgs& args, const CudaContext& context) {
  const unsigned blocks = grid_x(ceil_div<int64_t>(args.rows(), kWarps));
  const bool wide = args.points.dtype == DType::kDouble;
  return launch_blocks(wide ? generic_kernel<double> : generic_kernel<float>, blocks, kThreads,
                       context.stream, args);
}

}  // namespace torchvox
