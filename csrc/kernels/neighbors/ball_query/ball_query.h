// SPDX-License-Identifier: Apache-2.0
//
// Entry of ball_query, and the rule of all its plans. scan.cu tests the points of a cloud in index
// order, up to the k-th hit; cells.cu bins the points into a hash grid, and ball_query.cu searches
// the cells around a query. kernels.cuh is what they share. CPU, and the choice of the plan:
// ball_query_cpu.cpp.
#pragma once

#include <cmath>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

// One ball around every query. A point at d is a hit when d <= outer and not core < d < inner.
struct BallRadius {
  double outer = -1.0, inner = 0.0;
  int64_t k = 0;
  int64_t slot = 0;  // of its first hit in a row of the outputs
};
inline constexpr int kMostRadii = 4;

// The bounds of a ball in the arithmetic of the points. `radius2` is used instead of `radius`
// unless null.
TORCHVOX_EXPORT BallRadius ball_radius(DType dtype, double radius, const double* radius2,
                                       double min_radius, double core_dist2, bool closed);

// Cloud b of `query` searches cloud b of `points`.
struct BallQueryArgs {
  CloudBatch points, query;  // of one layout, dtype and number of columns
  bool local_index = true;  // packed: indices count from the cloud's first point

  DistOrder order = DistOrder::kPn2;  // kLoop unless there are 3 columns
  double core = 0.0;  // squared; points within it are hits of every ball; negative: none are
  BallRadius radius[kMostRadii];
  int radii = 1;
  bool pad = false;  // fill="pad": -1 after the hits; else the first hit, or 0 without hits

  int64_t slots = 0;  // per row of idx and dist2
  int64_t counts = 1;  // per row of count
  void* dist2 = nullptr;  // [rows, slots], double for double points, else float; may be null
  int32_t* idx = nullptr;  // [rows, slots]
  int32_t* count = nullptr;  // [rows, counts]

  // For radius_neighbors: every hit of one ball. With idx null the hits of each row are only
  // counted; else row i has the slots [row_offsets[i], row_offsets[i + 1]).
  bool all = false;
  const int64_t* row_offsets = nullptr;

  TORCHVOX_HD int64_t rows() const { return query.total_rows(); }
  TORCHVOX_HD int64_t first_slot(int64_t row, int r) const {
    return row_offsets ? row_offsets[row] : row * slots + radius[r].slot;
  }
  TORCHVOX_HD int64_t most_hits(int64_t row, int r) const {
    return row_offsets ? row_offsets[row + 1] - row_offsets[row] : radius[r].k;
  }
  bool generic() const { return points.dtype == DType::kDouble || points.columns > 3; }
};

TORCHVOX_KERNEL(BallQueryArgs);

// run_cpu(); then, if `between` is given, calls it and runs the query again over the same points.
// `between` may change the outputs in `args`.
void run_ball_cpu(const BallQueryArgs& args, void* workspace, const ParallelFor& parallel_for,
                  const std::function<void()>& between);

struct BallCloud : CloudRows {
  int64_t index_base;  // added to the index of a point in the cloud; -1 for an empty cloud

  // Cloud b; without points for b = -1.
  static TORCHVOX_HD BallCloud of(const BallQueryArgs& args, int64_t b) {
    if (b < 0) return {};
    const CloudRows rows = args.points.cloud(b);
    // Row 0 of an empty cloud would be a point of the next one.
    const int64_t first = rows.points > 0 ? rows.first : -1;
    return {rows, args.points.packed && !args.local_index ? first : 0};
  }
};

// A row of at most three axes in summation order. One that is not finite becomes NaN throughout,
// and so does every distance to it: it fails each comparison of BallTest.
TORCHVOX_HD Point3 load_row(const BallQueryArgs& args, const void* data, int64_t at) {
  const Point3 p = load_axes(args.points, args.order, data, at);
  const float nan = bit_cast<float>(0x7fc00000u);
  return is_finite(p) ? p : Point3{nan, nan, nan};
}

// Whether a squared distance is a hit of one ball.
template <class C>
struct BallTest {
  C outer, inner, core;

  static TORCHVOX_HD BallTest of(const BallQueryArgs& args, int r) {
    return {static_cast<C>(args.radius[r].outer), static_cast<C>(args.radius[r].inner),
            static_cast<C>(args.core)};
  }
  TORCHVOX_HD bool has_hole() const { return inner > C{0}; }
  TORCHVOX_HD bool in_hole(C d) const { return d > core && d < inner; }
  TORCHVOX_HD bool operator()(C d) const { return d <= outer && !in_hole(d); }
};

// One coordinate of points of any type.
template <class C>
TORCHVOX_HD C load_wide(DType dtype, const void* data, int64_t at) {
  return dtype == DType::kDouble ? static_cast<C>(static_cast<const double*>(data)[at])
                                 : static_cast<C>(load_coordinate(data, dtype, at));
}
// The squared distance of rows of any number of axes and any type, straight from memory; NaN if one
// of them is not finite.
template <class C>
TORCHVOX_HD C dist2_rows(const BallQueryArgs& args, int64_t point, int64_t query) {
  C difference[3], sum = 0;
  bool finite = true;
  for (int64_t axis = 0; axis < args.points.columns; ++axis) {
    const C p = load_wide<C>(args.points.dtype, args.points.data, point + axis);
    const C q = load_wide<C>(args.points.dtype, args.query.data, query + axis);
    finite = finite && is_finite(p) && is_finite(q);
    if (args.order == DistOrder::kPn2) {
      difference[axis] = p - q;
    } else {
      sum = fma_rn(p - q, p - q, sum);
    }
  }
  if (args.order == DistOrder::kPn2) {
    sum = fma_rn(difference[2], difference[2],
                 fma_rn(difference[0], difference[0], difference[1] * difference[1]));
  }
  return finite ? sum : sum * bit_cast<float>(0x7fc00000u);
}

// Writes hit j of a ball: `i` counts from the cloud's first point.
template <class C>
TORCHVOX_HD void write_hit(const BallQueryArgs& args, const BallCloud& cloud, int64_t row, int r,
                           int64_t j, int64_t i, C dist2) {
  if (args.idx == nullptr) return;
  const int64_t at = args.first_slot(row, r) + j;
  args.idx[at] = static_cast<int32_t>(i + cloud.index_base);
  if (args.dist2) static_cast<C*>(args.dist2)[at] = dist2;
}

// The index in the slots after the hits; `first` is the first hit, or -1.
TORCHVOX_HD int32_t fill_index(const BallQueryArgs& args, const BallCloud& cloud, int64_t first) {
  if (args.pad) return -1;
  return static_cast<int32_t>((first < 0 ? 0 : first) + cloud.index_base);
}

// Fills the slots [begin, k) in steps of `step`: one lane's share of them.
template <class C>
TORCHVOX_HD void write_fill(const BallQueryArgs& args, int64_t row, int r, int64_t begin,
                            int64_t step, int32_t fill) {
  if (args.idx == nullptr) return;
  const int64_t base = args.first_slot(row, r), end = args.most_hits(row, r);
  for (int64_t j = begin; j < end; j += step) {
    args.idx[base + j] = fill;
    if (args.dist2) static_cast<C*>(args.dist2)[base + j] = 0;
  }
}

inline const PlanOverride ball_kernel_plan{"ball_kernel"};  // 0 scan in index order, 1 cells
inline const PlanOverride ball_cpu_plan{"ball_cpu"};  // see run_vectorized()

// Cells for finding the points near a query, exact for any coordinates. The number of a cell is a
// monotone function of the coordinate, so a point between q - reach and q + reach lies in a cell
// between theirs; and a point farther than `reach` along one axis is outside every ball.
//
// Cells are in a hash table of buckets. A row of cells along the first axis has one hash and takes
// consecutive buckets, so that a query's neighborhood is a few runs of points. A bucket may hold
// points of other cells and clouds, too: a hit counts only in the row of cells to which it belongs.
struct BallGrid {
  float reach;
  float per_a, per_bc;  // cells per unit of length
  uint32_t mask;  // buckets - 1
  int bits;  // log2 of the buckets

  static constexpr float kMostCells = 1048576.0f;  // on either side of 0; one cell holds the rest
  static constexpr int kMostRows = 16;  // of cells around a query: 4 cells on each of two axes

  // At least as many buckets as points, between two limits.
  static BallGrid of(const BallQueryArgs& args, int least_bits, int most_bits);

  static TORCHVOX_HD int32_t cell(float x, float per_unit) {
    float s = x * per_unit;
    s = s < -kMostCells ? -kMostCells : (s > kMostCells ? kMostCells : s);
    const int32_t towards_zero = static_cast<int32_t>(s);
    return towards_zero - (static_cast<float>(towards_zero) > s ? 1 : 0);
  }
  TORCHVOX_HD int32_t cell_a(float x) const { return cell(x, per_a); }
  TORCHVOX_HD int32_t cell_bc(float x) const { return cell(x, per_bc); }

  TORCHVOX_HD uint32_t row_bucket(int64_t cloud, int32_t b, int32_t c) const {
    uint32_t h = static_cast<uint32_t>(b) * 0x9e3779b1u;
    h = (h ^ (h >> 15) ^ static_cast<uint32_t>(c)) * 0x85ebca77u;
    h = (h ^ (h >> 13) ^ static_cast<uint32_t>(cloud)) * 0xc2b2ae3du;
    return h ^ (h >> 16);
  }
  TORCHVOX_HD uint32_t bucket(int64_t cloud, const Point3& p) const {
    return (row_bucket(cloud, cell_bc(p.b), cell_bc(p.c)) + static_cast<uint32_t>(cell_a(p.a))) &
        mask;
  }
};

// The cells around a query, in rows along a. Rows are numbered along b first.
struct BallCells {
  int32_t a, b, c;  // lowest cell
  int32_t run, rows_b, rows_c;  // cells along each axis

  static TORCHVOX_HD BallCells of(const BallGrid& grid, const Point3& q) {
    BallCells cells;
    cells.a = grid.cell_a(q.a - grid.reach);
    cells.b = grid.cell_bc(q.b - grid.reach);
    cells.c = grid.cell_bc(q.c - grid.reach);
    cells.run = grid.cell_a(q.a + grid.reach) - cells.a + 1;
    cells.rows_b = grid.cell_bc(q.b + grid.reach) - cells.b + 1;
    cells.rows_c = grid.cell_bc(q.c + grid.reach) - cells.c + 1;
    return cells;
  }
  TORCHVOX_HD int rows() const { return rows_b * rows_c; }
  // Row `row` of at most kMostRows, without a division.
  TORCHVOX_HD int above(int row) const {
    return (row >= rows_b) + (row >= 2 * rows_b) + (row >= 3 * rows_b);
  }
  TORCHVOX_HD int32_t row_b(int row) const { return b + row - above(row) * rows_b; }
  TORCHVOX_HD int32_t row_c(int row) const { return c + above(row); }
};

inline BallGrid BallGrid::of(const BallQueryArgs& args, int least_bits, int most_bits) {
  double outer = 0.0;
  for (int r = 0; r < args.radii; ++r) outer = std::fmax(outer, args.radius[r].outer);
  BallGrid grid;
  // With a margin for the rounding of the square root; never subnormal when squared.
  grid.reach = static_cast<float>(std::fmax(std::sqrt(outer) * 1.00001, 1e-18));
  grid.per_bc = 1.0f / grid.reach;
  grid.per_a = 2.0f / grid.reach;
  grid.bits = least_bits;
  while (grid.bits < most_bits && (int64_t{1} << grid.bits) < args.points.total_rows()) ++grid.bits;
  grid.mask = (uint32_t{1} << grid.bits) - 1;
  return grid;
}

// How a call runs, from sizes and radii that the host knows. No plan changes a result.
enum class BallPlan {
  kScan,  // all points of the cloud in index order, up to the k-th hit
  kCells,  // the points of the cells around the query, the lowest indices of them sorted
  kGeneric  // any number of axes, and doubles: as kScan, without tiles
};

BallPlan make_ball_plan(const BallQueryArgs& args, const Target& target);

}  // namespace torchvox
