// SPDX-License-Identifier: Apache-2.0
//
// ball_query on the CPU, in tasks of 32 queries, and the plan for any target. Points are stored as
// one array per coordinate, in index order and, for cells, a second time by bucket. The loops over
// them are plain, so that the compiler vectorizes them for the chosen instruction set.
#include <algorithm>
#include <cstring>
#include <vector>

#include "csrc/kernels/neighbors/ball_query/ball_query.h"

namespace torchvox {
namespace {

constexpr int kChunk = 64;  // points per box, and per batch of distances
constexpr int kVector = 16;  // floats of the widest vector

struct Planes {
  float *a, *b, *c;  // [points]

  void set(int64_t i, const Point3& p) const { a[i] = p.a, b[i] = p.b, c[i] = p.c; }
  Point3 get(int64_t i) const { return {a[i], b[i], c[i]}; }
  // With room for a vector that begins inside and ends beyond.
  static Planes take(Workspace& workspace, int64_t count) {
    Planes planes;
    for (float** plane : {&planes.a, &planes.b, &planes.c}) {
      *plane = workspace.take<float>(count + kVector);
    }
    return planes;
  }
  void end(int64_t count) const {
    for (float* plane : {a, b, c}) std::fill_n(plane + count, kVector, NAN);
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

  CpuBall(const BallQueryArgs& args, BallPlan plan, Workspace& workspace)
      : args(args), cells(plan == BallPlan::kCells) {
    if (plan == BallPlan::kGeneric) return;
    const int64_t points = args.points.total_rows();
    in_order = Planes::take(workspace, points);
    if (!cells) return;
    constexpr int kLeastTableBits = 6, kMostTableBits = 22;
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
  constexpr int64_t kChunksPerTask = 128;
  const int64_t points = args.points.total_rows();
  ball.in_order.end(points);
  if (ball.cells) ball.by_bucket.end(points);
  for_each_index(parallel_for, (points + kChunk - 1) / kChunk, kChunksPerTask, [&](int64_t chunk) {
    Point3 low{INFINITY, INFINITY, INFINITY}, high{-INFINITY, -INFINITY, -INFINITY};
    for (int64_t row = chunk * kChunk; row < std::min((chunk + 1) * kChunk, points); ++row) {
      const int64_t at =
          args.points.packed ? row * args.points.row_stride : args.points.find(row).element;
      const Point3 p = load_row(args, args.points.data, at);
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
    int64_t i = 0;  // never decreases, even if offsets do, so that no point comes twice
    for (int64_t b = 0; b < args.points.clouds; ++b) {
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

// Sizes from which building cells pays.
constexpr int64_t kCudaTests = int64_t{1} << 25;  // distances of the call
constexpr int64_t kCudaLeastPoints = 2048;  // per cloud, with kCudaTests
constexpr int64_t kCudaMostPoints = int64_t{1} << 15;  // per cloud, in any case
constexpr int64_t kCpuPoints = 1024;  // per cloud
constexpr int64_t kCpuPointsOfSeveral = 8192;  // several radii: the smallest rarely has k hits
constexpr int64_t kCpuQueries = 64;  // per cloud
constexpr int64_t kMostSorted = 512;  // CUDA: most hits to sort by counting the smaller ones

template <class C>
BallRadius bounds(double radius, const double* radius2, double min_radius, double core_dist2,
                  bool closed) {
  const C r = static_cast<C>(radius), low = static_cast<C>(min_radius);
  const C r2 = radius2 ? static_cast<C>(*radius2) : r * r;
  const C last = closed ? r2 : std::nextafter(r2, -std::numeric_limits<C>::infinity());
  BallRadius ball;
  ball.outer = std::max(last, static_cast<C>(core_dist2));
  ball.inner = low * low;
  return ball;
}

constexpr int64_t kDense = 256;  // candidates of a dense neighborhood

// The index in the upper half, the bits of the distance in the lower.
using Hit = uint64_t;

struct RowState {
  std::vector<Hit> hits, of_radius;
};

// Distances of `count` <= kChunk points from `begin` on, rounded up to whole vectors. False only if
// none of them is within `outer`.
bool distances(const Planes& planes, int64_t begin, int count, const Point3& q, float outer,
               float* d) {
  int any = 0;
  for (int first = 0; first < count; first += kVector) {
    const int64_t at = begin + first;
    const float *a = planes.a + at, *b = planes.b + at, *c = planes.c + at;
#pragma GCC ivdep
    for (int i = 0; i < kVector; ++i) {
      d[first + i] = dist2(a[i] - q.a, b[i] - q.b, c[i] - q.c);
      any |= d[first + i] <= outer;
    }
  }
  return any != 0;
}

// Bit i is set if d[i] is a hit.
uint64_t hit_bits(const float* d, int count, const BallTest<float>& test) {
  uint64_t bits = 0;
  for (int first = 0; first < count; first += kVector) {
    uint8_t hit[kVector];
    for (int i = 0; i < kVector; ++i) hit[i] = test(d[first + i]);
    for (int i = 0; i < kVector; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, hit + i, 8);
      // Packs the lowest bits of the eight bytes into one byte.
      bits |= eight * 0x0102040810204080u >> 56 << (first + i);
    }
  }
  return count < kChunk ? bits & ((uint64_t{1} << count) - 1) : bits;
}
int take_lowest_bit(uint64_t& bits) {
  const int i = __builtin_ctzll(bits);
  bits &= bits - 1;
  return i;
}

float largest_outer(const BallQueryArgs& args) {
  double outer = args.radius[0].outer;
  for (int r = 1; r < args.radii; ++r) outer = std::max(outer, args.radius[r].outer);
  return static_cast<float>(outer);
}

template <class C = float>
void finish_row(const BallQueryArgs& args, const BallCloud& cloud, int64_t row, int r, int64_t hits,
                int64_t first) {
  args.count[row * args.counts + r] = static_cast<int32_t>(hits);
  write_fill<C>(args, row, r, hits, 1, fill_index(args, cloud, first));
}

// One query while its cloud is tested in index order.
struct RowScan {
  const CpuBall& ball;
  const BallCloud& cloud;
  const Point3& q;
  int64_t row;
  float outer;
  int64_t hits[kMostRadii] = {};
  int64_t first[kMostRadii] = {-1, -1, -1, -1};

  // Adds the points [begin, begin + count) of the cloud; false if every ball has all its hits.
  bool add(int64_t begin, int count) {
    const BallQueryArgs& args = ball.args;
    float d[kChunk];
    if (!distances(ball.in_order, cloud.first + begin, count, q, outer, d)) return true;
    bool open = false;
    for (int r = 0; r < args.radii; ++r) {
      const int64_t most = args.most_hits(row, r);
      if (hits[r] == most) continue;
      uint64_t bits = hit_bits(d, count, BallTest<float>::of(args, r));
      while (bits != 0 && hits[r] < most) {
        const int i = take_lowest_bit(bits);
        if (hits[r] == 0) first[r] = begin + i;
        write_hit(args, cloud, row, r, hits[r]++, begin + i, d[i]);
      }
      open = open || hits[r] < most;
    }
    return open;
  }
  void finish() const {
    for (int r = 0; r < ball.args.radii; ++r) {
      finish_row(ball.args, cloud, row, r, hits[r], first[r]);
    }
  }
};

void scan_row(const CpuBall& ball, const BallCloud& cloud, const Point3& q, int64_t row) {
  RowScan scan{ball, cloud, q, row, largest_outer(ball.args)};
  for (int64_t begin = 0; begin < cloud.points; begin += kChunk) {
    const auto count = static_cast<int>(std::min<int64_t>(kChunk, cloud.points - begin));
    if (!scan.add(begin, count)) break;
  }
  scan.finish();
}

// The same over the boxes that the ball reaches. False if there are more than `budget` of them;
// then the row is not finished.
bool scan_boxes(const CpuBall& ball, const BallCloud& cloud, const Point3& q, int64_t row,
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
      const int64_t end = std::min((box + i + 1) * kChunk - cloud.first, int64_t{cloud.points});
      open = scan.add(begin, static_cast<int>(end - begin));
    }
  }
  scan.finish();
  return true;
}

// Keeps the k lowest indices, in order, and writes them.
void write_sorted(const BallQueryArgs& args, const BallCloud& cloud, int64_t row, int r,
                  std::vector<Hit>& hits) {
  const int64_t kept = std::min<int64_t>(args.most_hits(row, r), hits.size());
  if (args.idx == nullptr) return finish_row(args, cloud, row, r, kept, -1);
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

// The runs of points of the cells around q, ascending and disjoint: runs that overlap or touch are
// merged. Returns how many.
int runs_of(const CpuBall& ball, int64_t cloud, const Point3& q, Run* runs) {
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
void gather_hits(const CpuBall& ball, const BallCloud& cloud, const Point3& q, float outer,
                 const Run* runs, int count, std::vector<Hit>& hits) {
  const auto first = static_cast<uint32_t>(cloud.first),
             points = static_cast<uint32_t>(cloud.points);
  size_t size_of_hits = 0;
  for (int n = 0; n < count; ++n) {
    for (int64_t begin = runs[n].begin; begin < runs[n].end; begin += kChunk) {
      float d[kChunk];
      const int size = static_cast<int>(std::min<int64_t>(kChunk, runs[n].end - begin));
      if (!distances(ball.by_bucket, begin, size, q, outer, d)) continue;
      if (hits.size() < size_of_hits + kChunk) hits.resize(2 * size_of_hits + kChunk);
      for (int i = 0; i < size; ++i) {
        const uint32_t point = static_cast<uint32_t>(ball.row[begin + i]) - first;
        hits[size_of_hits] = static_cast<Hit>(point) << 32 | float_bits(d[i]);
        size_of_hits += d[i] <= outer && point < points;  // clouds share buckets
      }
    }
  }
  hits.resize(size_of_hits);
}

void cells_row(const CpuBall& ball, int64_t b, const BallCloud& cloud, const Point3& q, int64_t row,
               RowState& state) {
  const BallQueryArgs& args = ball.args;
  Run runs[2 * BallGrid::kMostRows];
  const int count = runs_of(ball, b, q, runs);
  int64_t candidates = 0;
  for (int n = 0; n < count; ++n) candidates += runs[n].end - runs[n].begin;
  // A dense neighborhood usually has its first k hits early; otherwise the scan gives up in time.
  const bool dense = candidates > kDense && candidates > cloud.points / kChunk;
  if (dense && scan_boxes(ball, cloud, q, row, candidates / kChunk)) return;
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
void generic_row(const BallQueryArgs& args, const BallCloud& cloud, const CloudBatch::Place& query,
                 int64_t row) {
  for (int r = 0; r < args.radii; ++r) {
    const auto test = BallTest<C>::of(args, r);
    const int64_t most = args.most_hits(row, r);
    int64_t hits = 0, first = -1;
    for (int64_t i = 0; i < cloud.points && hits < most; ++i) {
      const C d = dist2_rows<C>(args, cloud.base + i * args.points.row_stride, query.element);
      if (!test(d)) continue;
      if (hits == 0) first = i;
      write_hit(args, cloud, row, r, hits++, i, d);
    }
    finish_row<C>(args, cloud, row, r, hits, first);
  }
}

constexpr int64_t kRowsPerTask = 32;

void rows(const CpuBall& ball, int64_t begin, int64_t end) {
  const BallQueryArgs& args = ball.args;
  RowState state;
  for (int64_t row = begin; row < end; ++row) {
    const CloudBatch::Place query = args.query.find(row);
    const BallCloud cloud = BallCloud::of(args, query.cloud);
    if (args.generic()) {
      with_compute_type(args.points.dtype,
                        [&](auto real) { generic_row<decltype(real)>(args, cloud, query, row); });
      continue;
    }
    const Point3 q = load_row(args, args.query.data, query.element);
    if (ball.cells && cloud.points > 0 && !is_nan(q.a)) {
      cells_row(ball, query.cloud, cloud, q, row, state);
    } else {
      scan_row(ball, cloud, q, row);
    }
  }
}

}  // namespace

BallRadius ball_radius(DType dtype, double radius, const double* radius2, double min_radius,
                       double core_dist2, bool closed) {
  return dtype == DType::kDouble ? bounds<double>(radius, radius2, min_radius, core_dist2, closed)
                                 : bounds<float>(radius, radius2, min_radius, core_dist2, closed);
}

BallPlan make_ball_plan(const BallQueryArgs& args, const Target& target) {
  if (args.generic()) return BallPlan::kGeneric;
  bool bounded =
      args.points.total_rows() < (int64_t{1} << 31) && args.points.clouds < (int64_t{1} << 31);
  int64_t most = 0;
  for (int r = 0; r < args.radii; ++r) {
    bounded = bounded && args.radius[r].outer < std::numeric_limits<double>::infinity();
    most = std::max(most, args.radius[r].k);
  }
  if (target.cuda && !args.all) bounded = bounded && most <= kMostSorted;
  if (!bounded) return BallPlan::kScan;
  const int64_t forced = ball_kernel_plan.value();
  if (forced != kAutomatic) return forced == 1 ? BallPlan::kCells : BallPlan::kScan;
  const int64_t clouds = std::max<int64_t>(args.points.clouds, 1);
  const int64_t points = args.points.total_rows() / clouds, queries = args.rows() / clouds;
  const bool cells = target.cuda
      ? points >= kCudaMostPoints ||
          (points >= kCudaLeastPoints && points * queries >= kCudaTests / clouds)
      : points >= (args.radii > 1 ? kCpuPointsOfSeveral : kCpuPoints) && queries >= kCpuQueries;
  return cells ? BallPlan::kCells : BallPlan::kScan;
}

int64_t workspace_bytes_cpu(const BallQueryArgs& args) {
  return carved_bytes<CpuBall>(args, make_ball_plan(args, Target{}));
}

void run_cpu(const BallQueryArgs& args, void* memory, const ParallelFor& parallel_for) {
  run_ball_cpu(args, memory, parallel_for, nullptr);
}

void run_ball_cpu(const BallQueryArgs& args, void* memory, const ParallelFor& parallel_for,
                  const std::function<void()>& between) {
  const BallPlan plan = make_ball_plan(args, Target{});
  const auto ball = carve<CpuBall>(memory, args, plan);
  if (plan != BallPlan::kGeneric) load_points(ball, parallel_for);
  if (ball.cells) fill_cells(ball);
  const auto query = [&] {
    for_each_range(parallel_for, args.rows(), kRowsPerTask, [&](int64_t begin, int64_t end) {
      run_vectorized(ball_cpu_plan, [&] { rows(ball, begin, end); });
    });
  };
  query();
  if (!between) return;
  between();
  query();
}

}  // namespace torchvox
