// SPDX-License-Identifier: Apache-2.0
//
// Points are dealt out to cells of the size of the ball, so that a query looks at a few runs of
// them. Which place a point takes within its bucket, and where a chunk of buckets begins, changes
// from run to run; the hits of a query are sorted by index, so no result shows it.
#include "csrc/kernels/core/dependent_launch.cuh"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/neighbours/ball_words.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;
constexpr int kChunkBits = 11;  // buckets that one block gives places to
constexpr int kChunk = 1 << kChunkBits;
constexpr int kMostTableBits = 24;
constexpr int kQueryWarps = 4;  // of a block
constexpr int kCrowded = 1024;  // candidates
constexpr int kSpareHits = 96;  // beyond k, before a warp drops the highest

struct CellsWork {
  BallGrid grid;
  uint32_t* cursor;  // places given out; cleared, as count
  uint32_t* count;  // [buckets]
  uint32_t* begin;  // [buckets + chunks]: of every bucket, and of the end of every chunk
  uint32_t* rank;  // [points]: within the bucket
  float4* in_order;  // [points], NaN where there is none: in summation order, and its bucket
  float4* point;  // [points] by place: in summation order, and the row among all points
  float4* box;  // [points / 32, 2]: lowest and highest of 32 points in index order
  int64_t cleared;  // bytes from cursor on

  static CellsWork carve(const BallQueryArgs& args, Workspace& workspace) {
    CellsWork work;
    work.grid = BallGrid::of(args, kChunkBits, kMostTableBits);
    const int64_t buckets = int64_t{1} << work.grid.bits;
    const int64_t before = workspace.bytes();
    work.cursor = workspace.take<uint32_t>(1);
    work.count = workspace.take<uint32_t>(buckets);
    work.cleared = workspace.bytes() - before;
    work.begin = workspace.take<uint32_t>(buckets + (buckets >> kChunkBits));
    work.rank = workspace.take<uint32_t>(args.total_points());
    work.in_order = workspace.take<float4>(args.total_points());
    work.point = workspace.take<float4>(args.total_points());
    work.box = workspace.take<float4>(2 * ceil_div<int64_t>(args.total_points(), 32));
    return work;
  }
  // Where `begin` holds the begin of a bucket; the next word is its end.
  static __device__ uint32_t slot(uint32_t bucket) { return bucket + (bucket >> kChunkBits); }
};

// The bucket of point `row` of all points, and the point; false where there is no such point.
__device__ __forceinline__ bool find_bucket(const BallQueryArgs& args, const BallGrid& grid,
                                            int64_t row, Point3& p, uint32_t& bucket) {
  const int64_t b = args.ragged
      ? ragged_cloud(args.ptr, args.clouds, args.capacity, row)
      : static_cast<int64_t>(static_cast<uint32_t>(row) / static_cast<uint32_t>(args.capacity));
  if (b < 0) return false;
  const BallCloud cloud = BallCloud::of(args, b);
  const int64_t i = row - cloud.first;
  if (i >= cloud.points) return false;
  p = load_row(args, args.points, cloud.base + i * args.point_stride);
  if (is_nan(p.a)) return false;
  bucket = grid.bucket(b, p);
  return true;
}

__device__ __forceinline__ float warp_min(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fminf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}

// Counts the points of every bucket, and boxes those of every warp.
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ BallQueryArgs args,
                                                         const __grid_constant__ CellsWork work) {
  let_next_begin();
  const int lane = threadIdx.x % 32;
  const int64_t points = args.total_points();
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
    const float4 low{warp_min(found ? p.a : none), warp_min(found ? p.b : none),
                     warp_min(found ? p.c : none), 0.0f};
    const float4 high{-warp_min(found ? -p.a : none), -warp_min(found ? -p.b : none),
                      -warp_min(found ? -p.c : none), 0.0f};
    if (lane < 2) work.box[row / 32 * 2 + lane] = lane == 0 ? low : high;
  }
}

// One block a chunk of buckets, eight of them a thread. Chunks lie in any order.
__global__ void __launch_bounds__(kThreads) begin_kernel(const __grid_constant__ CellsWork work) {
  constexpr int kEach = kChunk / kThreads;
  __shared__ uint32_t sums[kThreads / 32];
  __shared__ uint32_t base;
  let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t first = blockIdx.x * kChunk + threadIdx.x * kEach;
  uint32_t count[kEach], sum = 0;
#pragma unroll
  for (int j = 0; j < kEach; j += 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(&work.count[first + j]);
    count[j] = four.x, count[j + 1] = four.y, count[j + 2] = four.z, count[j + 3] = four.w;
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) sum += count[j];
  uint32_t inclusive = sum;
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t below = __shfl_up_sync(kFullWarp, inclusive, step);
    if (lane >= step) inclusive += below;
  }
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

// ------------------------------------------------------------------------------ queries

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
    const uint32_t border = (first | (kChunk - 1)) + 1;
    const uint32_t from = lane % 2 == 0 ? first : (border & work.grid.mask);
    const int32_t buckets = lane % 2 == 0 ? static_cast<int32_t>(min(last, border) - first)
                                          : static_cast<int32_t>(last - border);
    if (buckets > 0) {
      begin = work.begin[CellsWork::slot(from)];
      length = static_cast<int>(work.begin[CellsWork::slot(from) + buckets] - begin);
    }
  }
  int end = length;
  for (int step = 1; step < 32; step *= 2) {
    const int below = __shfl_up_sync(kFullWarp, end, step);
    if (lane >= step) end += below;
  }
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
  for (int step = 16; step > 0; step /= 2) {
    highest = max(highest, __shfl_xor_sync(kFullWarp, highest, step));
  }
  limit = highest;
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
  const auto test = BallTest<float>::of(args, r);
  const int k = static_cast<int>(args.radius[r].k);
  int n = 0, run = 0;
  int32_t limit = 0x7fffffff;
  for (int first = 0; first < candidates; first += 32) {
    const int t = first + lane;
    float4 p{0, 0, 0, 0};
    float d = bit_cast<float>(0x7fc00000u);
    if (t < candidates) {
      while (t >= runs.end[run]) ++run;
      p = work.point[t + runs.shift[run]];
      d = dist2(p.x - q.a, p.y - q.b, p.z - q.c);
    }
    if (!__any_sync(kFullWarp, d <= test.outer)) continue;
    const int64_t i = __float_as_int(p.w) - cloud.first;
    const bool hit = test(d) && i >= 0 && i < cloud.points && i < limit &&
        work.grid.cell_bc(p.y) == runs.b[run] && work.grid.cell_bc(p.z) == runs.c[run];
    const unsigned mask = __ballot_sync(kFullWarp, hit);
    if (hit) {
      const int at = n + __popc(mask & lanes_below(lane));
      hits.idx[at] = static_cast<int32_t>(i);
      hits.d[at] = d;
    }
    n += __popc(mask);
    if (n > k + kSpareHits - 32) n = drop_highest(hits, n, k, lane, limit);
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
  for (int step = 16; step > 0; step /= 2) {
    first = min(first, __shfl_xor_sync(kFullWarp, first, step));
  }
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

// A warp a query.
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
  const BallQuery query = BallQuery::of(args, row);
  BallCloud cloud{0, 0, 0, 0};
  Point3 q{0, 0, 0};
  if (query.cloud >= 0) {
    cloud = BallCloud::of(args, query.cloud);
    q = load_row(args, args.query, query.base);
    if (is_nan(q.a)) cloud.points = 0;
  }
  Runs& runs = all_runs[warp];
  int candidates = 0;
  if (cloud.points > 0) candidates = find_runs(work, query.cloud, q, lane, runs);
  for (int r = 0; r < args.radii; ++r) {
    // A crowded neighbourhood has its first k hits early, or else the scan gives up in time.
    const bool crowded = candidates > kCrowded && candidates > cloud.points / 32;
    if (crowded && scan_boxes(args, work, cloud, q, row, r, lane, candidates / 32)) continue;
    const int n = gather_hits(args, work, cloud, q, r, candidates, lane, runs, hits);
    write_sorted(args, cloud, row, r, n, lane, hits);
  }
}

}  // namespace

int64_t ball_cells_workspace_bytes(const BallQueryArgs& args) {
  Workspace workspace;
  CellsWork::carve(args, workspace);
  return workspace.bytes();
}

cudaError_t launch_ball_cells(const BallQueryArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const CellsWork work = CellsWork::carve(args, workspace);
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.cursor, 0, work.cleared, context.stream));
  const unsigned blocks = blocks_for(args.total_points(), kThreads, context.target);
  count_kernel<<<blocks, kThreads, 0, context.stream>>>(args, work);
  TORCHVOX_CUDA_CHECK(cudaGetLastError());
  const unsigned chunks = 1u << (work.grid.bits - kChunkBits);
  TORCHVOX_CUDA_CHECK(launch_after(begin_kernel, chunks, kThreads, context, work));
  TORCHVOX_CUDA_CHECK(
      launch_after(place_kernel, blocks, kThreads, context, args.total_points(), work));
  int64_t most = 0;
  for (int r = 0; r < args.radii; ++r) most = args.radius[r].k > most ? args.radius[r].k : most;
  const int room = static_cast<int>(ceil_div<int64_t>(most + kSpareHits + 4, 4) * 4);
  const auto query_blocks = static_cast<unsigned>(ceil_div<int64_t>(args.rows(), kQueryWarps));
  const size_t shared = size_t{2} * room * kQueryWarps * sizeof(int32_t);
  query_kernel<<<query_blocks, 32 * kQueryWarps, shared, context.stream>>>(args, work, room);
  return cudaGetLastError();
}

}  // namespace torchvox
