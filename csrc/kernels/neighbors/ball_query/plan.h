// SPDX-License-Identifier: Apache-2.0
//
// The plans of ball_query, and the hash grid of cells.
#pragma once

#include <cmath>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/neighbors/ball_query/rule.h"

namespace torchvox {

// Plans that tests force.
inline const PlanOverride ball_kernel_plan{
    "ball_kernel"};  // 0 all points in index order, 1 cells around the queries
inline const PlanOverride ball_cpu_plan{"ball_cpu"};  // see instruction_set()

// Cells that find the points near a query: exact whatever the coordinates. A cell's number is a
// monotone function of the coordinate, so a point between q - reach and q + reach lies in a cell
// between theirs; and a point further than `reach` along one axis alone is further than every ball.
//
// Cells live in a table of buckets by their hash. A row of cells along the first axis hashes as one
// and takes consecutive buckets, so that a query's neighborhood is a few runs of points. A bucket
// may hold points of other cells and clouds too: a hit counts only in the row that it lies in.

struct BallGrid {
  float reach;
  float per_a, per_bc;  // cells a unit
  uint32_t mask;  // buckets - 1
  int bits;  // log2 of the buckets

  static constexpr float kMostCells = 1048576.0f;  // on either side of 0; beyond, all is one cell
  static constexpr int kMostRows = 16;  // that a query touches: 4 cells on each of two axes

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

// The cells around a query. Rows are numbered along b first.
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
  // With a margin for the rounding of the square, which must not be subnormal.
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
