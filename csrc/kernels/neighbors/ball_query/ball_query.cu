// SPDX-License-Identifier: Apache-2.0
//
// The choice of a ball query's kernel, and the query over cells. count: one thread a point, one
// atomic in its bucket; a warp boxes its 32 points. begin: one block a prefix sum over 2,048
// buckets. place: one thread a point moves 16 bytes to its bucket. query: a warp a query, a lane a
// point; the points of the cells around it are read once, 16 bytes each; hits gather in shared
// memory, and those of lowest index are written in order. In a dense neighborhood the warp passes
// over boxes of 32 points in index order instead, up to the k-th hit.
#include "csrc/kernels/neighbors/ball_query/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kQueryWarps = 4;  // of a block
constexpr int kDense = 1024;  // candidates of a dense neighborhood
constexpr int kSpareHits = 96;  // beyond k, before a warp drops the highest

// Of a warp, in shared memory: its runs of points, and the hits so far.
struct Runs {
  int32_t shift[32];  // place of candidate t of the run: t + shift
  int32_t end[32];  // of its candidates
  int32_t b[32], c[32];  // its row of cells
};
struct Hits {
  int32_t* idx;
  float* d;
};

// Fills in the runs around the query and gives the number of candidates. Two lanes a row of cells:
// the cells in one chunk of buckets, and those in the next.
__device__ __forceinline__ int find_runs(const CellsWork& work, int64_t cloud, const Point3& q,
                                         int lane, Runs& runs) {
  const auto cells = BallCells::of(work.grid, q);
  const int row = lane / 2;
  uint32_t begin = 0;
  int length = 0, b = 0, c = 0;
  if (row < cells.rows()) {
    b = cells.row_b(row), c = cells.row_c(row);
    const uint32_t first =
        (work.grid.row_bucket(cloud, b, c) + static_cast<uint32_t>(cells.a)) & work.grid.mask;
    const uint32_t last = first + static_cast<uint32_t>(cells.run);
    const uint32_t border = (first | (kBuckets - 1)) + 1;
    const uint32_t from = lane % 2 == 0 ? first : (border & work.grid.mask);
    const int32_t buckets = lane % 2 == 0 ? static_cast<int32_t>(min(last, border) - first)
                                          : static_cast<int32_t>(last - border);
    if (buckets > 0) {
      begin = work.begin[CellsWork::slot(from)];
      length = static_cast<int>(work.begin[CellsWork::slot(from) + buckets] - begin);
    }
  }
  const int end = warp_inclusive(length);
  const unsigned used = __ballot_sync(kFullWarp, length > 0);
  if (length > 0) {
    const int at = __popc(used & lanes_below(lane));
    runs.shift[at] = static_cast<int32_t>(begin) - (end - length);
    runs.end[at] = end;
    runs.b[at] = b;
    runs.c[at] = c;
  }
  __syncwarp();
  return __shfl_sync(kFullWarp, end, 31);
}

// How many of the n hits have a lower index.
__device__ __forceinline__ int rank_of(const Hits& hits, int n, int32_t idx) {
  int rank = 0;
  for (int i = 0; i < n; i += 4) {
    const int4 four = *reinterpret_cast<const int4*>(&hits.idx[i]);
    rank += (four.x < idx) + (four.y < idx) + (four.z < idx) + (four.w < idx);
  }
  return rank;
}

// Ends the hits on a multiple of four, as rank_of reads them.
__device__ __forceinline__ void close_hits(const Hits& hits, int n, int lane) {
  if (lane < 4) hits.idx[n + lane] = 0x7fffffff;
  __syncwarp();
}

// Drops all but the k hits of lowest index, 32 < k < n; no later hit from `limit` on counts.
__device__ __forceinline__ int drop_highest(const Hits& hits, int n, int k, int lane,
                                            int32_t& limit) {
  close_hits(hits, n, lane);
  unsigned kept = 0;  // bit j: hit 32 j + lane
  int32_t highest = 0;
  for (int i = lane; i < n; i += 32) {
    const int rank = rank_of(hits, n, hits.idx[i]);
    if (rank < k) kept |= 1u << (i / 32);
    if (rank == k - 1) highest = hits.idx[i];
  }
  limit = static_cast<int32_t>(warp_max(static_cast<uint32_t>(highest)));
  int left = 0;
  for (int i = lane; i - lane < n; i += 32) {
    const bool keep = kept >> (i / 32) & 1;
    const unsigned mask = __ballot_sync(kFullWarp, keep);
    const int32_t idx = keep ? hits.idx[i] : 0;
    const float d = keep ? hits.d[i] : 0.0f;
    __syncwarp();
    const int at = left + __popc(mask & lanes_below(lane));
    if (keep) hits.idx[at] = idx, hits.d[at] = d;
    left += __popc(mask);
    __syncwarp();
  }
  return left;
}

// Gathers the hits of ball r among the candidates: at least the k of lowest index.
__device__ __forceinline__ int gather_hits(const BallQueryArgs& args, const CellsWork& work,
                                           const BallCloud& cloud, const Point3& q, int r,
                                           int candidates, int lane, const Runs& runs,
                                           const Hits& hits) {
  constexpr int kAhead = 2;  // loads of a lane on their way at once
  const auto test = BallTest<float>::of(args, r);
  const int k = static_cast<int>(args.radius[r].k);
  const int points = static_cast<int>(cloud.points);
  int n = 0, run = 0;
  int32_t limit = 0x7fffffff;
  for (int first = 0; first < candidates; first += 32 * kAhead) {
    float4 p[kAhead];
    int of[kAhead];  // the run of each
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int t = first + 32 * j + lane;
      p[j].x = __int_as_float(0x7fc00000);
      if (t >= candidates) continue;
      while (t >= runs.end[run]) ++run;
      of[j] = run;
      p[j] = work.point[t + runs.shift[run]];
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      if (first + 32 * j >= candidates) break;
      const float d = dist2(p[j].x - q.a, p[j].y - q.b, p[j].z - q.c);
      if (!__any_sync(kFullWarp, d <= test.outer)) continue;
      bool hit = test(d);
      int32_t i = 0;
      if (hit) {
        i = __float_as_int(p[j].w) - static_cast<int32_t>(cloud.first);
        hit = i >= 0 && i < points && i < limit && work.grid.cell_bc(p[j].y) == runs.b[of[j]] &&
            work.grid.cell_bc(p[j].z) == runs.c[of[j]];
      }
      const unsigned mask = __ballot_sync(kFullWarp, hit);
      if (hit) {
        const int at = n + __popc(mask & lanes_below(lane));
        hits.idx[at] = i;
        hits.d[at] = d;
      }
      n += __popc(mask);
      if (n > k + kSpareHits - 32) n = drop_highest(hits, n, k, lane, limit);
    }
  }
  __syncwarp();
  return n;
}

__device__ __forceinline__ void write_sorted(const BallQueryArgs& args, const BallCloud& cloud,
                                             int64_t row, int r, int n, int lane,
                                             const Hits& hits) {
  const int k = static_cast<int>(args.radius[r].k);
  close_hits(hits, n, lane);
  int32_t first = 0x7fffffff;
  for (int i = lane; i < n; i += 32) {
    const int32_t idx = hits.idx[i];
    const int rank = rank_of(hits, n, idx);
    first = min(first, idx);
    if (rank < k) write_hit(args, cloud, row, r, rank, idx, hits.d[i]);
  }
  first = static_cast<int32_t>(warp_min(static_cast<uint32_t>(first)));
  const int kept = min(n, k);
  const int32_t fill = fill_index(args, cloud, n > 0 ? first : -1);
  write_fill<float>(args, row, r, kept + lane, 32, fill);
  if (lane == 0) args.count[row * args.counts + r] = kept;
  __syncwarp();
}

// The cloud in index order, up to the k-th hit: the points of those boxes that the ball reaches.
// False when there are more than `budget` of them; then the row is not finished.
__device__ __forceinline__ bool scan_boxes(const BallQueryArgs& args, const CellsWork& work,
                                           const BallCloud& cloud, const Point3& q, int64_t row,
                                           int r, int lane, int budget) {
  constexpr int kAhead = 4;  // boxes whose points are on their way at once
  const auto test = BallTest<float>::of(args, r);
  const int k = static_cast<int>(args.radius[r].k);
  const int first = static_cast<int>(cloud.first), points = static_cast<int>(cloud.points);
  const int last = (first + points - 1) / 32;
  BallRow ball{0, -1};
  for (int box = first / 32; box <= last && ball.hits < k; box += 32) {
    bool near = false;
    if (box + lane <= last) {
      const float4 low = work.box[2 * int64_t{box + lane}];
      const float4 high = work.box[2 * int64_t{box + lane} + 1];
      near = dist2(gap(low.x, high.x, q.a), gap(low.y, high.y, q.b), gap(low.z, high.z, q.c)) <=
          test.outer;
    }
    unsigned boxes = __ballot_sync(kFullWarp, near), word = 0;
    int hits = ball.hits;
    while (boxes != 0 && hits < k) {
      int at[kAhead];
      float d[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        at[j] = boxes != 0 ? __ffs(static_cast<int>(boxes)) - 1 : 32;
        boxes &= boxes - 1;
        const int i = 32 * (box + at[j]) + lane;
        d[j] = __int_as_float(0x7fc00000);
        if (at[j] < 32 && static_cast<unsigned>(i - first) < static_cast<unsigned>(points)) {
          const float4 p = work.in_order[i];
          d[j] = dist2(p.x - q.a, p.y - q.b, p.z - q.c);
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const unsigned mask = __ballot_sync(kFullWarp, test(d[j]));
        if (lane == at[j]) word = mask;
        hits += __popc(mask);
      }
      budget -= kAhead;
      if (budget < 0 && hits < k) return false;
    }
    ball.write(args, cloud, q, row, r, lane, word, 32 * box - first, [&](int i) {
      const float4 p = work.in_order[32 * box + i];
      return Point3{p.x, p.y, p.z};
    });
  }
  ball.finish(args, cloud, row, r, lane);
  return true;
}

__global__ void __launch_bounds__(32 * kQueryWarps)
    query_kernel(const __grid_constant__ BallQueryArgs args, const __grid_constant__ CellsWork work,
                 int room) {
  extern __shared__ __align__(16) int32_t shared[];
  __shared__ Runs all_runs[kQueryWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = int64_t{blockIdx.x} * kQueryWarps + warp;
  const Hits hits{shared + warp * 2 * room,
                  reinterpret_cast<float*>(shared + warp * 2 * room + room)};
  if (row >= args.rows()) return;
  const CloudBatch::Place query = args.query.find(row);
  BallCloud cloud = BallCloud::of(args, query.cloud);
  Point3 q{0, 0, 0};
  if (query.cloud >= 0) q = load_row(args, args.query.data, query.element);
  if (is_nan(q.a)) cloud.points = 0;
  Runs& runs = all_runs[warp];
  int candidates = 0;
  if (cloud.points > 0) candidates = find_runs(work, query.cloud, q, lane, runs);
  for (int r = 0; r < args.radii; ++r) {
    // A dense neighborhood has its first k hits early, or else the scan gives up in time.
    const bool dense = candidates > kDense && candidates > cloud.points / 32;
    if (dense && scan_boxes(args, work, cloud, q, row, r, lane, candidates / 32)) continue;
    const int n = gather_hits(args, work, cloud, q, r, candidates, lane, runs, hits);
    write_sorted(args, cloud, row, r, n, lane, hits);
  }
}

cudaError_t launch_cells_queries(const BallQueryArgs& args, const CellsWork& work,
                                 const CudaContext& context) {
  int64_t most = 0;
  for (int r = 0; r < args.radii; ++r) most = args.radius[r].k > most ? args.radius[r].k : most;
  const int room = static_cast<int>(ceil_div<int64_t>(most + kSpareHits + 4, 4) * 4);
  const unsigned query_blocks = grid_x(ceil_div<int64_t>(args.rows(), kQueryWarps));
  const size_t shared = size_t{2} * room * kQueryWarps * sizeof(int32_t);
  return launch_sharing(query_kernel, query_blocks, 32 * kQueryWarps, shared, context.stream, args,
                        work, room);
}

constexpr int kThreads = 256;

// The bucket of point `row` of all points, and the point; false where there is no such point.
__device__ __forceinline__ bool find_bucket(const BallQueryArgs& args, const BallGrid& grid,
                                            int64_t row, Point3& p, uint32_t& bucket) {
  const int64_t b = args.points.packed
      ? args.points.packed_owner(row)
      : static_cast<int64_t>(static_cast<uint32_t>(row) / static_cast<uint32_t>(args.points.rows));
  if (b < 0) return false;
  const BallCloud cloud = BallCloud::of(args, b);
  const int64_t i = row - cloud.first;
  if (i >= cloud.points) return false;
  p = load_row(args, args.points.data, cloud.base + i * args.points.row_stride);
  if (is_nan(p.a)) return false;
  bucket = grid.bucket(b, p);
  return true;
}

__device__ __forceinline__ float warp_least(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fminf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}

// Counts the points of every bucket, and boxes those of every warp.
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ BallQueryArgs args,
                                                         const __grid_constant__ CellsWork work) {
  let_next_begin();
  const int lane = threadIdx.x % 32;
  const int64_t points = args.points.total_rows();
  for (int64_t row = global_thread(); row - lane < points; row += global_stride()) {
    Point3 p{0, 0, 0};
    uint32_t bucket;
    const bool found = row < points && find_bucket(args, work.grid, row, p, bucket);
    if (found) work.rank[row] = atomicAdd(&work.count[bucket], 1u);
    if (row < points) {
      const float nan = __int_as_float(0x7fc00000);
      work.in_order[row] =
          found ? float4{p.a, p.b, p.c, __uint_as_float(bucket)} : float4{nan, nan, nan, nan};
    }
    const float none = __int_as_float(0x7f800000);
    const float4 low{warp_least(found ? p.a : none), warp_least(found ? p.b : none),
                     warp_least(found ? p.c : none), 0.0f};
    const float4 high{-warp_least(found ? -p.a : none), -warp_least(found ? -p.b : none),
                      -warp_least(found ? -p.c : none), 0.0f};
    if (lane < 2) work.box[row / 32 * 2 + lane] = lane == 0 ? low : high;
  }
}

// One block a chunk of buckets, eight of them a thread. Chunks lie in any order.
__global__ void __launch_bounds__(kThreads) begin_kernel(const __grid_constant__ CellsWork work) {
  constexpr int kEach = kBuckets / kThreads;
  __shared__ uint32_t sums[kThreads / 32];
  __shared__ uint32_t base;
  let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t first = blockIdx.x * kBuckets + threadIdx.x * kEach;
  uint32_t count[kEach], sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; j += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(&work.count[first + j]);
    count[j] = four.x, count[j + 1] = four.y, count[j + 2] = four.z, count[j + 3] = four.w;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) sum += count[j];
  const uint32_t inclusive = warp_inclusive(sum);
  if (lane == 31) sums[warp] = inclusive;
  __syncthreads();
  uint32_t before = 0, total = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) {
    before += w < warp ? sums[w] : 0;
    total += sums[w];
  }
  if (threadIdx.x == 0) base = total > 0 ? atomicAdd(work.cursor, total) : 0;
  __syncthreads();
  uint32_t place = base + before + inclusive - sum;
  uint32_t* begin = &work.begin[first + blockIdx.x];
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    begin[j] = place;
    place += count[j];
  }
  if (threadIdx.x == kThreads - 1) begin[kEach] = place;
}

__global__ void __launch_bounds__(kThreads)
    place_kernel(int64_t points, const __grid_constant__ CellsWork work) {
  let_next_begin();
  wait_for_previous();
  for (int64_t row = global_thread(); row < points; row += global_stride()) {
    float4 p = work.in_order[row];
    if (is_nan(p.x)) continue;
    const uint32_t bucket = __float_as_uint(p.w);
    p.w = __int_as_float(static_cast<int>(row));
    work.point[work.begin[CellsWork::slot(bucket)] + work.rank[row]] = p;
  }
}

cudaError_t launch_cells(const BallQueryArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const CellsWork work(args, workspace);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.cursor, 0, work.cleared, context.stream));
  const unsigned blocks = blocks_for(args.points.total_rows(), kThreads, context.target);
  TORCHVOX_CUDA_CHECK(launch_blocks(count_kernel, blocks, kThreads, context.stream, args, work));
  const unsigned chunks = 1u << (work.grid.bits - kBucketBits);
  TORCHVOX_CUDA_CHECK(launch_after(begin_kernel, chunks, kThreads, context, work));
  TORCHVOX_CUDA_CHECK(
      launch_after(place_kernel, blocks, kThreads, context, args.points.total_rows(), work));
  return launch_cells_queries(args, work, context);
}

}  // namespace

int64_t workspace_bytes_cuda(const BallQueryArgs& args, const Target& target) {
  const bool cells = make_ball_plan(args, target) == BallPlan::kCells;
  return cells ? carved_bytes<CellsWork>(args) : 0;
}

cudaError_t launch(const BallQueryArgs& args, void* workspace, const CudaContext& context) {
  if (args.rows() == 0) return cudaSuccess;
  switch (make_ball_plan(args, context.target)) {
    case BallPlan::kCells: return launch_cells(args, workspace, context);
    case BallPlan::kGeneric: return launch_ball_generic(args, context);
    case BallPlan::kScan: break;
  }
  return launch_ball_scan(args, context);
}

}  // namespace torchvox
