// SPDX-License-Identifier: Apache-2.0
//
// ball_query on the CPU, in tasks of 32 queries. The loops over points are plain and over
// structures of arrays, so that the compiler turns them into the widest vectors of the chosen
// instruction set.
#include <cstring>
#include <vector>

#include "csrc/kernels/neighbors/ball_query/planes_cpu.h"

namespace torchvox {

inline constexpr int64_t kDense = 256;  // candidates of a dense neighborhood

// An index in the upper half and the bits of its distance in the lower.
using Hit = uint64_t;

struct RowState {
  std::vector<Hit> hits, of_radius;
};

// Distances of `count` <= kChunk points of planes from `begin` on, and of some more behind them, in
// whole vectors. False only when none of them is within `outer`.
inline bool distances(const Planes& planes, int64_t begin, int count, const Point3& q, float outer,
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

// Bit i: whether d[i] is a hit.
inline uint64_t hit_bits(const float* d, int count, const BallTest<float>& test) {
  uint64_t bits = 0;
  for (int first = 0; first < count; first += kVector) {
    uint8_t hit[kVector];
    for (int i = 0; i < kVector; ++i) hit[i] = test(d[first + i]);
    for (int i = 0; i < kVector; i += 8) {
      uint64_t eight;
      std::memcpy(&eight, hit + i, 8);
      // The lowest bit of each byte, side by side.
      bits |= eight * 0x0102040810204080u >> 56 << (first + i);
    }
  }
  return count < kChunk ? bits & ((uint64_t{1} << count) - 1) : bits;
}
inline int take_lowest_bit(uint64_t& bits) {
  const int i = __builtin_ctzll(bits);
  bits &= bits - 1;
  return i;
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
      if (hits[r] == args.radius[r].k) continue;
      uint64_t bits = hit_bits(d, count, BallTest<float>::of(args, r));
      while (bits != 0 && hits[r] < args.radius[r].k) {
        const int i = take_lowest_bit(bits);
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
      const int64_t end = std::min((box + i + 1) * kChunk - cloud.first, int64_t{cloud.points});
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
  // A dense neighborhood has its first k hits early, or else the scan gives up in time.
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
void generic_row(const BallQueryArgs& args, const BallCloud& cloud, const BallQuery& query,
                 int64_t row) {
  for (int r = 0; r < args.radii; ++r) {
    const auto test = BallTest<C>::of(args, r);
    int64_t hits = 0, first = -1;
    for (int64_t i = 0; i < cloud.points && hits < args.radius[r].k; ++i) {
      const C d = dist2_rows<C>(args, cloud.base + i * args.points.row_stride, query.base);
      if (!test(d)) continue;
      if (hits == 0) first = i;
      write_hit(args, cloud, row, r, hits++, i, d);
    }
    args.count[row * args.counts + r] = static_cast<int32_t>(hits);
    write_fill<C>(args, row, r, hits, 1, fill_index(args, cloud, first));
  }
}

namespace {

constexpr int64_t kRowsPerTask = 32;

inline void rows(const CpuBall& ball, int64_t begin, int64_t end) {
  const BallQueryArgs& args = ball.args;
  RowState state;
  for (int64_t row = begin; row < end; ++row) {
    const BallQuery query = BallQuery::of(args, row);
    const BallCloud cloud = BallCloud::of(args, query.cloud);
    if (args.generic()) {
      if (args.points.dtype == DType::kDouble) {
        generic_row<double>(args, cloud, query, row);
      } else {
        generic_row<float>(args, cloud, query, row);
      }
      continue;
    }
    const Point3 q = load_row(args, args.query.data, query.base);
    if (ball.cells && cloud.points > 0 && !is_nan(q.a)) {
      cells_row(ball, query.cloud, cloud, q, row, state);
    } else {
      scan_row(ball, cloud, q, row);
    }
  }
}

}  // namespace

int64_t workspace_bytes_cpu(const BallQueryArgs& args) {
  Workspace workspace;
  CpuBall(args, make_ball_plan(args, Target{}), workspace);
  return workspace.bytes();
}

void run_cpu(const BallQueryArgs& args, void* memory, const ParallelFor& parallel_for) {
  const BallPlan plan = make_ball_plan(args, Target{});
  Workspace workspace(memory);
  const CpuBall ball(args, plan, workspace);
  if (plan != BallPlan::kGeneric) load_points(ball, parallel_for);
  if (ball.cells) fill_cells(ball);
  for_each_range(parallel_for, args.rows(), kRowsPerTask, [&](int64_t begin, int64_t end) {
    run_vectorized(ball_cpu_plan, [&] { rows(ball, begin, end); });
  });
}

}  // namespace torchvox
