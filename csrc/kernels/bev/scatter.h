// SPDX-License-Identifier: Apache-2.0
//
// The pass over the points that every raster starts with: locate each point, count its fate, and
// hand the used ones to a visitor, bool visit(const BevPoint&, row), which says whether it was the
// first of its cell. Here for the host; scatter.cuh is for the device.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/kernels/bev/grid.h"
#include "csrc/kernels/core/atomics.h"
#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/parallel.h"

namespace torchvox {

// One loaded point: its fate, its cell in the whole batch, its height in fp32.
struct BevPoint {
  BevFate fate;
  int64_t cell;
  float z;
};

// T is float or double.
template <class T>
TORCHVOX_HD BevPoint place_point(const BevGrid& grid, T x, T y, T z, int64_t sample) {
  BevPoint found{BevFate::kNonFinite, 0, 0.f};
  found.fate = grid.locate(x, y, z, &found.cell);
  found.cell += sample * grid.cells();
  found.z = static_cast<float>(z);
  return found;
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
    parallel_for((points.rows + kBevPointsPerTask - 1) / kBevPointsPerTask,
                 [&](int64_t first, int64_t last) {
                   scatter_range<decltype(type)>(points, grid, counters, visit,
                                                 first * kBevPointsPerTask,
                                                 std::min(last * kBevPointsPerTask, points.rows));
                 });
  });
}

// Row 0 of `counts` is the sum of the samples' rows. One column.
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
