// SPDX-License-Identifier: Apache-2.0
//
// The grid of a bird's-eye-view raster: the cell of a point, the place of a cell in the image, and
// the counts of points inside and outside.
#pragma once

#include <algorithm>
#include <cmath>

#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/entry.h"

namespace torchvox {

enum class BevOrientation { kGrid, kImage, kNorthUp };

// What becomes of one point.
enum class BevFate { kUsed, kOutOfRange, kNonFinite };

// Columns of a row of `counts`: row 0 is the whole call, row 1 + b is sample b.
enum BevCount { kBevCellsFilled, kBevPointsUsed, kBevOutOfRange, kBevNonFinite, kBevCounts };

// A raster over a range of x, y and z, half-open on all three axes.
struct BevGrid {
  float lower[3];  // meters
  float upper[3];  // meters
  float resolution[2];  // meters a cell along x and y: fp32(upper - lower) / fp32(cells)
  int64_t nx = 0, ny = 0;
  BevOrientation orientation = BevOrientation::kGrid;

  TORCHVOX_HD int64_t cells() const { return nx * ny; }

  // Position of cell (ix, iy) in the image of its sample.
  TORCHVOX_HD int64_t address(int64_t ix, int64_t iy) const {
    switch (orientation) {
      case BevOrientation::kGrid: return iy * nx + ix;
      case BevOrientation::kImage: return (nx - 1 - ix) * ny + (ny - 1 - iy);
      case BevOrientation::kNorthUp: return (ny - 1 - iy) * nx + ix;
    }
    return 0;
  }

  // The only rule for "which cell". T is float, or double for double points: the parameters are
  // fp32 either way. The float tests come before the integer conversion, and the quotient is tested
  // too: +-50 m in 1024 cells puts 49.999996 at quotient 1024.
  template <class T>
  TORCHVOX_HD BevFate locate(T x, T y, T z, int64_t* cell) const {
    if (!is_finite(x) || !is_finite(y) || !is_finite(z)) return BevFate::kNonFinite;
    if (!(x >= T(lower[0]) && x < T(upper[0]) && y >= T(lower[1]) && y < T(upper[1]) &&
          z >= T(lower[2]) && z < T(upper[2]))) {
      return BevFate::kOutOfRange;
    }
    const T qx = std::floor((x - T(lower[0])) / T(resolution[0]));
    const T qy = std::floor((y - T(lower[1])) / T(resolution[1]));
    if (!(qx >= T(0) && qx < T(nx) && qy >= T(0) && qy < T(ny))) return BevFate::kOutOfRange;
    *cell = address(static_cast<int64_t>(qx), static_cast<int64_t>(qy));
    return BevFate::kUsed;
  }
};

// The pass over the points that every raster starts with: locate each point, count its fate, and
// hand the used ones to a visitor, bool visit(const BevPoint&, row), which returns whether the
// point was the first of its cell. Here for the host; scatter.cuh is for the device.

// One loaded point: its fate, its cell in the whole batch, its height in fp32.
struct BevPoint {
  BevFate fate;
  int64_t cell;
  float z;
};

// T is float or double.
template <class T>
TORCHVOX_HD BevPoint place_point(const BevGrid& grid, T x, T y, T z, int64_t sample) {
  BevPoint point{BevFate::kNonFinite, 0, 0.f};
  point.fate = grid.locate(x, y, z, &point.cell);
  point.cell += sample * grid.cells();
  point.z = static_cast<float>(z);
  return point;
}

template <class T>
TORCHVOX_HD BevPoint locate_point(const CloudBatch& points, const BevGrid& grid, int64_t row,
                                  int64_t sample) {
  const T* p = static_cast<const T*>(points.data) + row * points.row_stride;
  return place_point(grid, widen(p[0]), widen(p[1]), widen(p[2]), sample);
}

TORCHVOX_HD BevCount count_of(BevFate fate) {
  return fate == BevFate::kUsed ? kBevPointsUsed
                                : (fate == BevFate::kOutOfRange ? kBevOutOfRange : kBevNonFinite);
}

inline constexpr int64_t kBevPointsPerTask = 8192;
inline constexpr int64_t kBevCellsPerTask = 65536;

template <class T, class Visit>
void scatter_range(const CloudBatch& points, const BevGrid& grid, int32_t* counters,
                   const Visit& visit, int64_t begin, int64_t end) {
  int32_t local[kBevCounts] = {};
  int64_t local_sample = -1;
  const auto flush = [&] {
    for (int c = 0; c < kBevCounts; ++c) {
      if (local[c]) atomic_add(&counters[local_sample * kBevCounts + c], local[c]);
      local[c] = 0;
    }
  };
  for (int64_t row = begin; row < end; ++row) {
    const int64_t sample = points.packed_owner(row);
    if (sample < 0) continue;
    if (sample != local_sample) {
      flush();
      local_sample = sample;
    }
    const BevPoint point = locate_point<T>(points, grid, row, sample);
    ++local[count_of(point.fate)];
    if (point.fate == BevFate::kUsed && visit(point, row)) ++local[kBevCellsFilled];
  }
  flush();
}

template <class Visit>
void scatter_cpu(const CloudBatch& points, const BevGrid& grid, int32_t* counters,
                 const Visit& visit, const ParallelFor& parallel_for) {
  with_point_type(points.dtype, [&](auto type) {
    for_each_range(parallel_for, points.rows, kBevPointsPerTask, [&](int64_t begin, int64_t end) {
      scatter_range<decltype(type)>(points, grid, counters, visit, begin, end);
    });
  });
}

// Writes one column of `counts` [batches + 1, kBevCounts] from those of the samples; row 0 is their
// sum.
TORCHVOX_HD void write_count_column(int column, const int32_t* counters, int64_t batches,
                                    int32_t* counts) {
  int32_t total = 0;
  for (int64_t b = 0; b < batches; ++b) {
    const int32_t count = counters[b * kBevCounts + column];
    counts[(b + 1) * kBevCounts + column] = count;
    total += count;
  }
  counts[column] = total;
}

inline void write_counts_cpu(const int32_t* counters, int64_t batches, int32_t* counts) {
  for (int column = 0; column < kBevCounts; ++column) {
    write_count_column(column, counters, batches, counts);
  }
}

}  // namespace torchvox
