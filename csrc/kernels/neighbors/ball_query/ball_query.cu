// SPDX-License-Identifier: Apache-2.0
//
// Launches the kernels of a ball query; and the query over cells: one warp per query, one lane per
// point. The points of the cells around it are read once, 16 bytes each; hits are gathered in
// shared memory, and those of lowest index are written in order. In a dense neighborhood the warp
// tests boxes of 32 points in index order instead, up to the k-th hit. For radius_neighbors hits
// are first counted, without gathering them; rows of many hits are then written from the boxes.
#include "csrc/kernels/neighbors/ball_query/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kQueryWarps = 4;  // per block
constexpr int kDense = 1024;  // candidates of a dense neighborhood
constexpr int kSpareHits = 96;  // beyond k, before a warp drops the highest
constexpr int kMostGathered = 256;  // hits that are gathered when a row gets all of them

// The runs of points of a warp's query, and its hits so far, in shared memory.
struct Runs {
  int32_t shift[32];  // candidate t of the run is at place t + shift
  int32_t end[32];  // candidate after the last of the run
  int32_t b[32], c[32];  // its row of cells
};
struct Hits {
  int32_t* idx;
  float* d;
};

// Fills in the runs around the query and returns the number of candidates. Two lanes per row of
// cells: one for the cells in a chunk of buckets, one for those in the next chunk.
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

// Pads the hits to a multiple of four, as rank_of() reads them.
__device__ __forceinline__ void close_hits(const Hits& hits, int n, int lane) {
  if (lane < 4) hits.idx[n + lane] = 0x7fffffff;
  __syncwarp();
}

// Drops all hits except the k of lowest index, k < n; sets `limit`, at and beyond which later hits
// do not count.
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

// Calls take(hit, i, d) for the candidates in turn, one per lane: whether it is a hit of ball r,
// its index in the cloud and its distance.
template <class Take>
__device__ __forceinline__ void visit_candidates(const BallQueryArgs& args, const CellsWork& work,
                                                 const BallCloud& cloud, const Point3& q, int r,
                                                 int candidates, int lane, const Runs& runs,
                                                 const Take& take) {
  constexpr int kAhead = 2;  // loads of a lane in flight at once
  const auto test = BallTest<float>::of(args, r);
  const int points = static_cast<int>(cloud.points);
  int run = 0;
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
        hit = i >= 0 && i < points && work.grid.cell_bc(p[j].y) == runs.b[of[j]] &&
            work.grid.cell_bc(p[j].z) == runs.c[of[j]];
      }
      take(hit, i, d);
    }
  }
  __syncwarp();
}

// Gathers the hits of ball r among the candidates: at least the k of lowest index.
__device__ __forceinline__ int gather_hits(const BallQueryArgs& args, const CellsWork& work,
                                           const BallCloud& cloud, const Point3& q, int r, int k,
                                           int candidates, int lane, const Runs& runs,
                                           const Hits& hits) {
  int n = 0;
  int32_t limit = 0x7fffffff;
  visit_candidates(args, work, cloud, q, r, candidates, lane, runs,
                   [&](bool hit, int32_t i, float d) {
                     hit = hit && i < limit;
                     const unsigned mask = __ballot_sync(kFullWarp, hit);
                     if (hit) {
                       const int at = n + __popc(mask & lanes_below(lane));
                       hits.idx[at] = i;
                       hits.d[at] = d;
                     }
                     n += __popc(mask);
                     if (n > k + kSpareHits - 32) n = drop_highest(hits, n, k, lane, limit);
                   });
  return n;
}

// Writes the k hits of lowest index in order, the fill after them, and their number.
__device__ __forceinline__ void write_sorted(const BallQueryArgs& args, const BallCloud& cloud,
                                             int64_t row, int r, int k, int n, int lane,
                                             const Hits& hits) {
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

// Tests the boxes that the ball reaches in index order, up to the k-th hit. False if there are more
// than `budget` of them; then the row is not finished.
__device__ __forceinline__ bool scan_boxes(const BallQueryArgs& args, const CellsWork& work,
                                           const BallCloud& cloud, const Point3& q, int64_t row,
                                           int r, int k, int lane, int budget) {
  constexpr int kAhead = 4;  // boxes whose points are in flight at once
  const auto test = BallTest<float>::of(args, r);
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

// One warp per query: reads the points of the cells around it, writes its rows. kAll: every hit of
// one ball, see BallQueryArgs::all.
template <bool kAll>
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
  if constexpr (kAll) {
    if (args.idx == nullptr) {
      uint32_t hits_of_lane = 0;
      visit_candidates(args, work, cloud, q, 0, candidates, lane, runs,
                       [&](bool hit, int32_t, float) { hits_of_lane += hit; });
      const uint32_t count = warp_sum(hits_of_lane);
      if (lane == 0) args.count[row] = static_cast<int32_t>(count);
      return;
    }
    const int most = static_cast<int>(args.most_hits(row, 0));
    if (most == 0) return;
    if (most > kMostGathered) {
      scan_boxes(args, work, cloud, q, row, 0, most, lane, 0x7fffffff);
      return;
    }
    const int n = gather_hits(args, work, cloud, q, 0, most, candidates, lane, runs, hits);
    write_sorted(args, cloud, row, 0, most, n, lane, hits);
  } else {
    for (int r = 0; r < args.radii; ++r) {
      const int k = static_cast<int>(args.radius[r].k);
      // A dense neighborhood usually has its first k hits early; otherwise the scan gives up in
      // time.
      const bool dense = candidates > kDense && candidates > cloud.points / 32;
      if (dense && scan_boxes(args, work, cloud, q, row, r, k, lane, candidates / 32)) continue;
      const int n = gather_hits(args, work, cloud, q, r, k, candidates, lane, runs, hits);
      write_sorted(args, cloud, row, r, k, n, lane, hits);
    }
  }
}

cudaError_t launch_cells_queries(const BallQueryArgs& args, const CellsWork& work,
                                 const CudaContext& context) {
  int64_t most = 0;
  for (int r = 0; r < args.radii; ++r) most = args.radius[r].k > most ? args.radius[r].k : most;
  if (args.all) most = args.idx ? kMostGathered : 0;
  const int room = static_cast<int>(ceil_div<int64_t>(most + kSpareHits + 4, 4) * 4);
  const unsigned query_blocks = grid_x(ceil_div<int64_t>(args.rows(), kQueryWarps));
  const size_t shared = size_t{2} * room * kQueryWarps * sizeof(int32_t);
  return launch_sharing(args.all ? query_kernel<true> : query_kernel<false>, query_blocks,
                        32 * kQueryWarps, shared, context.stream, args, work, room);
}

}  // namespace

int64_t workspace_bytes_cuda(const BallQueryArgs& args, const Target& target) {
  const bool cells = make_ball_plan(args, target) == BallPlan::kCells;
  return cells ? carved_bytes<CellsWork>(args) : 0;
}

cudaError_t launch_ball_queries(const BallQueryArgs& args, const CellsWork* cells,
                                const CudaContext& context) {
  switch (make_ball_plan(args, context.target)) {
    case BallPlan::kCells: return launch_cells_queries(args, *cells, context);
    case BallPlan::kGeneric: return launch_ball_generic(args, context);
    case BallPlan::kScan: break;
  }
  return launch_ball_scan(args, context);
}

cudaError_t launch(const BallQueryArgs& args, void* memory, const CudaContext& context) {
  if (args.rows() == 0) return cudaSuccess;
  if (make_ball_plan(args, context.target) != BallPlan::kCells) {
    return launch_ball_queries(args, nullptr, context);
  }
  const auto work = carve<CellsWork>(memory, args);
  TORCHVOX_CUDA_CHECK(make_ball_cells(args, work, context));
  return launch_ball_queries(args, &work, context);
}

}  // namespace torchvox
