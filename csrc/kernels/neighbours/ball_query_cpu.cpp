// SPDX-License-Identifier: Apache-2.0
//
// Points lie in planes of one coordinate each, in index order and, for cells, a second time by
// bucket. The loops over them are plain, so that the compiler turns them into the widest vectors of
// the chosen instruction set.
#include <algorithm>
#include <vector>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/neighbours/ball_plan.h"

namespace torchvox {

#ifdef TORCHVOX_CUDA
int64_t ball_cuda_workspace_bytes(const BallQueryArgs& args, const Target& target);
#endif

namespace {

constexpr int64_t kChunksPerTask = 128;
constexpr int64_t kRowsPerTask = 32;
constexpr int64_t kCrowded = 256;  // candidates
constexpr int kChunk = 64;  // distances computed at a time, points of a box
constexpr int kLeastTableBits = 6, kMostTableBits = 22;

struct Planes {
  float *a, *b, *c;  // [points]

  void set(int64_t i, const Point3& p) const { a[i] = p.a, b[i] = p.b, c[i] = p.c; }
  Point3 get(int64_t i) const { return {a[i], b[i], c[i]}; }
  static Planes take(Workspace& workspace, int64_t count) {
    Planes planes;
    for (float** plane : {&planes.a, &planes.b, &planes.c}) *plane = workspace.take<float>(count);
    return planes;
  }
};

struct CpuBall {
  const BallQueryArgs& args;
  bool cells;
  BallGrid grid;
  Planes in_order;  // by row among all points
  Planes low, high;  // boxes of kChunk points each, in order
  Planes by_bucket;
  int32_t* row;  // by bucket: the row among all points
  uint32_t* begins;  // [buckets + 1]

  // Carves the workspace; over null, to learn its size.
  CpuBall(const BallQueryArgs& args, BallPlan plan, Workspace& workspace)
      : args(args), cells(plan == BallPlan::kCells) {
    if (plan == BallPlan::kGeneric) return;
    const int64_t points = args.total_points();
    in_order = Planes::take(workspace, points);
    if (!cells) return;
    grid = BallGrid::of(args, kLeastTableBits, kMostTableBits);
    by_bucket = Planes::take(workspace, points);
    low = Planes::take(workspace, (points + kChunk - 1) / kChunk);
    high = Planes::take(workspace, (points + kChunk - 1) / kChunk);
    row = workspace.take<int32_t>(points);
    begins = workspace.take<uint32_t>((int64_t{1} << grid.bits) + 1);
  }
};

void load_points(const CpuBall& ball, const ParallelFor& parallel_for) {
  const BallQueryArgs& args = ball.args;
  const int64_t points = args.total_points();
  for_each_index(parallel_for, (points + kChunk - 1) / kChunk, kChunksPerTask, [&](int64_t chunk) {
    Point3 low{INFINITY, INFINITY, INFINITY}, high{-INFINITY, -INFINITY, -INFINITY};
    for (int64_t row = chunk * kChunk; row < std::min((chunk + 1) * kChunk, points); ++row) {
      const int64_t at = args.ragged
          ? row * args.point_stride
          : row / args.capacity * args.cloud_stride + row % args.capacity * args.point_stride;
      const Point3 p = load_row(args, args.points, at);
      ball.in_order.set(row, p);
      if (is_nan(p.a)) continue;
      low = {std::min(low.a, p.a), std::min(low.b, p.b), std::min(low.c, p.c)};
      high = {std::max(high.a, p.a), std::max(high.b, p.b), std::max(high.c, p.c)};
    }
    if (ball.cells) ball.low.set(chunk, low), ball.high.set(chunk, high);
  });
}

// A counting sort by bucket, stable.
void fill_cells(const CpuBall& ball) {
  const BallQueryArgs& args = ball.args;
  const int64_t buckets = int64_t{1} << ball.grid.bits;
  std::fill_n(ball.begins, buckets + 1, 0u);
  const auto for_each_point = [&](const auto& body) {
    int64_t i = 0;  // never back, even where the offsets do: no point comes twice
    for (int64_t b = 0; b < args.clouds; ++b) {
      const BallCloud cloud = BallCloud::of(args, b);
      for (i = std::max(i, cloud.first); i < cloud.first + cloud.points; ++i) {
        const Point3 p = ball.in_order.get(i);
        if (!is_nan(p.a)) body(i, p, ball.grid.bucket(b, p));
      }
    }
  };
  for_each_point([&](int64_t, const Point3&, uint32_t bucket) { ++ball.begins[bucket + 1]; });
  for (int64_t i = 0; i < buckets; ++i) ball.begins[i + 1] += ball.begins[i];
  for_each_point([&](int64_t i, const Point3& p, uint32_t bucket) {
    const uint32_t at = ball.begins[bucket]++;
    ball.by_bucket.set(at, p);
    ball.row[at] = static_cast<int32_t>(i);
  });
  for (int64_t i = buckets; i > 0; --i) ball.begins[i] = ball.begins[i - 1];
  ball.begins[0] = 0;
}

// ------------------------------------------------------------------------------ one query

// An index in the upper half and the bits of its distance in the lower.
using Hit = uint64_t;

struct RowState {
  std::vector<Hit> hits, of_radius;
};

// Distances of `count` <= kChunk points of planes from `begin` on; true if one is within `outer`.
inline bool distances(const Planes& planes, int64_t begin, int count, const Point3& q, float outer,
                      float* d) {
  const float *a = planes.a + begin, *b = planes.b + begin, *c = planes.c + begin;
  int any = 0;
#pragma GCC ivdep
  for (int i = 0; i < count; ++i) {
    d[i] = dist2(a[i] - q.a, b[i] - q.b, c[i] - q.c);
    any |= d[i] <= outer;
  }
  return any != 0;
}

inline float largest_outer(const BallQueryArgs& args) {
  double outer = args.radius[0].outer;
  for (int r = 1; r < args.radii; ++r) outer = std::max(outer, args.radius[r].outer);
  return static_cast<float>(outer);
}

inline void finish_row(const BallQueryArgs& args, const BallCloud& cloud, int64_t row, int r,
                       int64_t hits, int64_t first) {
  args.count[row * args.counts + r] = static_cast<int32_t>(hits);
  write_fill<float>(args, row, r, hits, 1, fill_index(args, cloud, first));
}

// One query while its cloud is passed over in index order.
struct RowScan {
  const CpuBall& ball;
  const BallCloud& cloud;
  const Point3& q;
  int64_t row;
  float outer;
  int64_t hits[kMostRadii] = {};
  int64_t first[kMostRadii] = {-1, -1, -1, -1};

  // Takes the points [begin, begin + count) of the cloud in; false when no ball wants more.
  bool add(int64_t begin, int count) {
    const BallQueryArgs& args = ball.args;
    float d[kChunk];
    if (!distances(ball.in_order, cloud.first + begin, count, q, outer, d)) return true;
    bool open = false;
    for (int r = 0; r < args.radii; ++r) {
      const auto test = BallTest<float>::of(args, r);
      for (int i = 0; i < count && hits[r] < args.radius[r].k; ++i) {
        if (!test(d[i])) continue;
        if (hits[r] == 0) first[r] = begin + i;
        write_hit(args, cloud, row, r, hits[r]++, begin + i, d[i]);
      }
      open = open || hits[r] < args.radius[r].k;
    }
    return open;
  }
  void finish() const {
    for (int r = 0; r < ball.args.radii; ++r) {
      finish_row(ball.args, cloud, row, r, hits[r], first[r]);
    }
  }
};

inline void scan_row(const CpuBall& ball, const BallCloud& cloud, const Point3& q, int64_t row) {
  RowScan scan{ball, cloud, q, row, largest_outer(ball.args)};
  for (int64_t begin = 0; begin < cloud.points; begin += kChunk) {
    const auto count = static_cast<int>(std::min<int64_t>(kChunk, cloud.points - begin));
    if (!scan.add(begin, count)) break;
  }
  scan.finish();
}

// The same over those boxes that the ball reaches. False when there are more than `budget` of them;
// then the row is not finished.
inline bool scan_boxes(const CpuBall& ball, const BallCloud& cloud, const Point3& q, int64_t row,
                       int64_t budget) {
  RowScan scan{ball, cloud, q, row, largest_outer(ball.args)};
  const int64_t last = (cloud.first + cloud.points - 1) / kChunk;
  bool open = true;
  for (int64_t box = cloud.first / kChunk; box <= last && open; box += kChunk) {
    const auto count = static_cast<int>(std::min<int64_t>(kChunk, last + 1 - box));
    const float *la = ball.low.a + box, *lb = ball.low.b + box, *lc = ball.low.c + box;
    const float *ha = ball.high.a + box, *hb = ball.high.b + box, *hc = ball.high.c + box;
    int32_t near[kChunk];
#pragma GCC ivdep
    for (int i = 0; i < count; ++i) {
      near[i] = dist2(gap(la[i], ha[i], q.a), gap(lb[i], hb[i], q.b), gap(lc[i], hc[i], q.c)) <=
          scan.outer;
    }
    for (int i = 0; i < count && open; ++i) {
      if (!near[i]) continue;
      if (--budget < 0) return false;
      const int64_t begin = std::max((box + i) * kChunk - cloud.first, int64_t{0});
      const int64_t end = std::min((box + i + 1) * kChunk - cloud.first, cloud.points);
      open = scan.add(begin, static_cast<int>(end - begin));
    }
  }
  scan.finish();
  return true;
}

// Keeps the k lowest indices, in order, and writes them.
inline void write_sorted(const BallQueryArgs& args, const BallCloud& cloud, int64_t row, int r,
                         std::vector<Hit>& hits) {
  const int64_t kept = std::min<int64_t>(args.radius[r].k, hits.size());
  if (kept < static_cast<int64_t>(hits.size())) {
    std::nth_element(hits.begin(), hits.begin() + kept, hits.end());
  }
  std::sort(hits.begin(), hits.begin() + kept);
  for (int64_t j = 0; j < kept; ++j) {
    write_hit(args, cloud, row, r, j, static_cast<int64_t>(hits[j] >> 32),
              bit_cast<float>(static_cast<uint32_t>(hits[j])));
  }
  finish_row(args, cloud, row, r, kept, kept ? static_cast<int64_t>(hits[0] >> 32) : -1);
}

struct Run {
  uint32_t begin, end;  // of points by bucket
};

// The runs of points of the cells around q, in order and apart: a run may cover buckets of another,
// and then also its hits. Returns how many.
inline int runs_of(const CpuBall& ball, int64_t cloud, const Point3& q, Run* runs) {
  const auto cells = BallCells::of(ball.grid, q);
  const uint32_t buckets = ball.grid.mask + 1;
  int count = 0;
  const auto add = [&](uint32_t first, uint32_t last) {
    const Run run{ball.begins[first], ball.begins[last]};
    if (run.begin == run.end) return;
    int at = count++;
    for (; at > 0 && runs[at - 1].begin > run.begin; --at) runs[at] = runs[at - 1];
    runs[at] = run;
  };
  for (int r = 0; r < cells.rows(); ++r) {
    const uint32_t first = (ball.grid.row_bucket(cloud, cells.row_b(r), cells.row_c(r)) +
                            static_cast<uint32_t>(cells.a)) &
        ball.grid.mask;
    const uint32_t last = first + static_cast<uint32_t>(cells.run);
    add(first, std::min(last, buckets));
    if (last > buckets) add(0, last - buckets);
  }
  int apart = 0;
  for (int n = 0; n < count; ++n) {
    if (apart > 0 && runs[n].begin <= runs[apart - 1].end) {
      runs[apart - 1].end = std::max(runs[apart - 1].end, runs[n].end);
    } else {
      runs[apart++] = runs[n];
    }
  }
  return apart;
}

// The points of the runs within `outer`, in any order.
inline void gather_hits(const CpuBall& ball, const BallCloud& cloud, const Point3& q, float outer,
                        const Run* runs, int count, std::vector<Hit>& hits) {
  const auto first = static_cast<uint32_t>(cloud.first),
             points = static_cast<uint32_t>(cloud.points);
  size_t found = 0;
  for (int n = 0; n < count; ++n) {
    for (int64_t begin = runs[n].begin; begin < runs[n].end; begin += kChunk) {
      float d[kChunk];
      const int size = static_cast<int>(std::min<int64_t>(kChunk, runs[n].end - begin));
      if (!distances(ball.by_bucket, begin, size, q, outer, d)) continue;
      if (hits.size() < found + kChunk) hits.resize(2 * found + kChunk);
      for (int i = 0; i < size; ++i) {
        const uint32_t point = static_cast<uint32_t>(ball.row[begin + i]) - first;
        hits[found] = static_cast<Hit>(point) << 32 | float_bits(d[i]);
        found += d[i] <= outer && point < points;  // buckets are shared between clouds
      }
    }
  }
  hits.resize(found);
}

inline void cells_row(const CpuBall& ball, int64_t b, const BallCloud& cloud, const Point3& q,
                      int64_t row, RowState& state) {
  const BallQueryArgs& args = ball.args;
  Run runs[2 * BallGrid::kMostRows];
  const int count = runs_of(ball, b, q, runs);
  int64_t candidates = 0;
  for (int n = 0; n < count; ++n) candidates += runs[n].end - runs[n].begin;
  // A crowded neighbourhood has its first k hits early, or else the scan gives up in time.
  const bool crowded = candidates > kCrowded && candidates > cloud.points / kChunk;
  if (crowded && scan_boxes(ball, cloud, q, row, candidates / kChunk)) return;
  gather_hits(ball, cloud, q, largest_outer(args), runs, count, state.hits);
  for (int r = 0; r < args.radii; ++r) {
    const auto test = BallTest<float>::of(args, r);
    state.of_radius.clear();
    for (const Hit hit : state.hits) {
      if (test(bit_cast<float>(static_cast<uint32_t>(hit)))) state.of_radius.push_back(hit);
    }
    write_sorted(args, cloud, row, r, state.of_radius);
  }
}

template <class C>
void generic_row(const BallQueryArgs& args, const BallCloud& cloud, const BallQuery& query,
                 int64_t row) {
  for (int r = 0; r < args.radii; ++r) {
    const auto test = BallTest<C>::of(args, r);
    int64_t hits = 0, first = -1;
    for (int64_t i = 0; i < cloud.points && hits < args.radius[r].k; ++i) {
      const C d = dist2_rows<C>(args, cloud.base + i * args.point_stride, query.base);
      if (!test(d)) continue;
      if (hits == 0) first = i;
      write_hit(args, cloud, row, r, hits++, i, d);
    }
    args.count[row * args.counts + r] = static_cast<int32_t>(hits);
    write_fill<C>(args, row, r, hits, 1, fill_index(args, cloud, first));
  }
}

// ------------------------------------------------------------------------------ many queries

inline void rows(const CpuBall& ball, int64_t begin, int64_t end) {
  const BallQueryArgs& args = ball.args;
  RowState state;
  for (int64_t row = begin; row < end; ++row) {
    const BallQuery query = BallQuery::of(args, row);
    const BallCloud cloud =
        query.cloud < 0 ? BallCloud{0, 0, 0, 0} : BallCloud::of(args, query.cloud);
    if (args.generic()) {
      if (args.dtype == DType::kDouble) {
        generic_row<double>(args, cloud, query, row);
      } else {
        generic_row<float>(args, cloud, query, row);
      }
      continue;
    }
    const Point3 q = load_row(args, args.query, query.base);
    if (ball.cells && cloud.points > 0 && !is_nan(q.a)) {
      cells_row(ball, query.cloud, cloud, q, row, state);
    } else {
      scan_row(ball, cloud, q, row);
    }
  }
}

// One definition, compiled for three instruction sets. Without FMA every fma is a call of libm,
// with the same bits.
using Rows = void (*)(const CpuBall&, int64_t, int64_t);

void rows_baseline(const CpuBall& ball, int64_t begin, int64_t end) { rows(ball, begin, end); }
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"), flatten)) void rows_avx2(const CpuBall& ball, int64_t begin,
                                                            int64_t end) {
  rows(ball, begin, end);
}
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"),
               flatten)) void
rows_avx512(const CpuBall& ball, int64_t begin, int64_t end) {
  rows(ball, begin, end);
}
Rows choose_rows() {
  const int64_t forced = plan_override(Plan::kBallCpu);
  const int64_t most = forced == kAutomatic ? 2 : forced;
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl");
  if (avx512 && most >= 2) return rows_avx512;
  return avx2 && most >= 1 ? rows_avx2 : rows_baseline;
}
#else
Rows choose_rows() { return rows_baseline; }
#endif

}  // namespace

int64_t workspace_bytes(const BallQueryArgs& args, const Target& target) {
#ifdef TORCHVOX_CUDA
  if (target.cuda) return ball_cuda_workspace_bytes(args, target);
#endif
  Workspace workspace;
  CpuBall(args, make_ball_plan(args, target), workspace);
  return workspace.bytes();
}

void run_cpu(const BallQueryArgs& args, void* memory, const ParallelFor& parallel_for) {
  const BallPlan plan = make_ball_plan(args, Target{});
  Workspace workspace(memory);
  const CpuBall ball(args, plan, workspace);
  if (plan != BallPlan::kGeneric) load_points(ball, parallel_for);
  if (ball.cells) fill_cells(ball);
  const Rows rows_of = choose_rows();
  parallel_for((args.rows() + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t first, int64_t last) {
    rows_of(ball, first * kRowsPerTask, std::min(last * kRowsPerTask, args.rows()));
  });
}

}  // namespace torchvox
