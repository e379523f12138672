// SPDX-License-Identifier: Apache-2.0
//
// Which points a pillar has, where it lies, and how its points are decorated: the one definition
// for every pillar op, on host and device.
#pragma once

#include <algorithm>
#include <cstring>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/ordered_sum.h"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/spatial/voxel_grid.h"

namespace torchvox {

inline const PlanOverride pillar_lists_plan{"pillar_lists"};  // CUDA: 0 of fixed length, 1 packed
// CUDA: 0 never uses the kernels for 4 to 7 float columns.
inline const PlanOverride pillar_common_plan{"pillar_common"};
inline const PlanOverride pillar_cpu_plan{"pillar_cpu"};  // see run_vectorized()

// Rows of voxel indices and the canvas [batches, ny, nx] in which each has a cell.
struct PillarRows {
  const int32_t* indices = nullptr;  // [rows, 4]: b, z, y, x; -1 in unused rows
  int64_t rows = 0, batches = 0, nx = 0, ny = 0;

  TORCHVOX_HD int64_t cells() const { return batches * ny * nx; }
  // The row's cell (b, y, x), or -1 where it is not on the canvas.
  TORCHVOX_HD int64_t cell(int64_t row) const {
    const int32_t* index = indices + 4 * row;
    const int64_t b = index[0], y = index[2], x = index[3];
    const bool inside = b >= 0 && b < batches && y >= 0 && y < ny && x >= 0 && x < nx;
    return inside ? (b * ny + y) * nx + x : -1;
  }
  // Offset of a cell's channel in a tensor [batches, channels, ny, nx] of these strides.
  TORCHVOX_HD int64_t strided(int64_t cell, int64_t channel, const int64_t strides[4]) const {
    const int64_t plane = nx * ny;
    return cell / plane * strides[0] + channel * strides[1] + cell % plane / nx * strides[2] +
        cell % nx * strides[3];
  }
};

// Points and their pillars, as voxel_map returns them. Whatever integers the caller passes, no
// access leaves the buffers; results are specified only for integers that one voxel_map returned.
struct PillarMap {
  const void* points = nullptr;  // [count, columns], unit column stride
  DType dtype = DType::kFloat;
  int64_t count = 0, columns = 0;
  int64_t row_stride = 0;  // in elements
  const int32_t* point_voxel = nullptr;  // [count] row of a point, -1 for none
  const int32_t* point_slot = nullptr;  // [count] the point's place within its row, -1 for none
  const int32_t* num_points = nullptr;  // [rows] points of each row
  PillarRows rows;
  VoxelGrid grid;
  int64_t max_points = -1;  // P, the slots of a pillar; -1: no limit
  int center_axes = 3;  // of the offset to the center: 2 (x, y) or 3
  bool legacy = false;  // the offset to the center takes the place of the coordinates
  bool padded = true;  // empty slots count as points whose decorated columns are all 0

  TORCHVOX_HD int64_t decorated() const { return columns + 3 + center_axes; }
  // Points stored in the pillar.
  TORCHVOX_HD int64_t stored(int64_t row) const {
    const int64_t most = max_points >= 0 && max_points < count ? max_points : count;
    const int64_t n = num_points[row];
    return n < 0 ? 0 : (n < most ? n : most);
  }
  // Whether a pillar of n points has slots that count as zeros.
  TORCHVOX_HD bool has_padding(int64_t n) const { return padded && n < max_points; }
  // The row of a stored point, else -1.
  TORCHVOX_HD int64_t row_of(int64_t point) const {
    const int64_t row = point_voxel[point], slot = point_slot[point];
    if (row < 0 || row >= rows.rows || slot < 0 || slot >= stored(row)) return -1;
    return rows.cell(row) >= 0 ? row : -1;
  }
  // Coordinate (meters) or feature, in the precision of the calculation.
  template <class T, class Real>
  TORCHVOX_HD Real value(int64_t point, int64_t column) const {
    return static_cast<Real>(widen(static_cast<const T*>(points)[point * row_stride + column]));
  }
};

// A pillar's middle and the mean of its stored points, in meters.
template <class Real>
struct PillarFrame {
  Real center[3], mean[3];

  TORCHVOX_HD void place(const PillarMap& map, int64_t row) {
    const int32_t* index = map.rows.indices + 4 * row;
    for (int axis = 0; axis < 3; ++axis) {
      center[axis] = map.grid.template center<Real>(axis, index[3 - axis]);
    }
  }
};

// Column `column` of a decorated point: the point's own columns, its offset to the mean, its offset
// to the center. values(c) is column c of the point.
template <class Real, class Values>
TORCHVOX_HD Real decorated(const PillarMap& map, int64_t columns, const PillarFrame<Real>& frame,
                           const Values& values, int64_t column) {
  if (column < columns) {
    const Real value = values(column);
    const bool replaced = map.legacy && column < 3 && column < map.center_axes;
    return replaced ? value - frame.center[column] : value;
  }
  const int64_t axis = column - columns;
  return axis < 3 ? values(axis) - frame.mean[axis] : values(axis - 3) - frame.center[axis - 3];
}
template <class T, class Real>
TORCHVOX_HD Real decorated(const PillarMap& map, const PillarFrame<Real>& frame, int64_t point,
                           int64_t column) {
  const auto values = [&](int64_t c) { return map.value<T, Real>(point, c); };
  return decorated(map, map.columns, frame, values, column);
}

// Calls body(T{}, Real{}) with the points' storage type and the type of the calculation.
template <class Body>
auto with_pillar_types(DType points, bool wide, Body&& body) {
  return with_point_type(points, [&](auto type) {
    return wide || points == DType::kDouble ? body(type, double{}) : body(type, float{});
  });
}

// The row that each cell of a canvas takes its values from, on the host: the lowest of the rows
// with this cell, -1 for none.
class HostCellRows {
 public:
  HostCellRows(const PillarRows& rows, Workspace& workspace)
      : row_(workspace.take<int32_t>(rows.cells())) {}

  void fill(const PillarRows& rows) const {
    std::fill_n(row_, rows.cells(), -1);
    for (int64_t row = rows.rows - 1; row >= 0; --row) {
      const int64_t cell = rows.cell(row);
      if (cell >= 0) row_[cell] = static_cast<int32_t>(row);
    }
  }
  int64_t row(int64_t cell) const { return row_[cell]; }
  // The cell that takes its values from the row, or -1.
  int64_t cell_of(const PillarRows& rows, int64_t row) const {
    const int64_t cell = rows.cell(row);
    return cell >= 0 && row_[cell] == row ? cell : -1;
  }
  // Writes zeros to the cells of a canvas [cells, elements] that have no row.
  void write_zeros(void* canvas, const PillarRows& rows, int64_t elements, DType dtype,
                   const ParallelFor& parallel_for) const {
    const int64_t bytes = elements * bytes_of(dtype);
    for_each_index(parallel_for, rows.cells(), 4096, [&](int64_t cell) {
      if (row_[cell] < 0) std::memset(static_cast<char*>(canvas) + cell * bytes, 0, bytes);
    });
  }

 private:
  int32_t* row_;
};

// The points of each pillar in slot order.
struct PillarLists {
  int32_t* points = nullptr;  // [entries]; those of row r start at begin(r)
  const int32_t* offsets = nullptr;  // [rows]; null: `stride` entries per row
  int64_t stride = 0, entries = 0;

  TORCHVOX_HD int64_t begin(int64_t row) const {
    if (offsets == nullptr) return row * stride;
    const int64_t offset = offsets[row];
    return offset < 0 ? 0 : offset;
  }
  // Writes a point to its slot, if it has one.
  TORCHVOX_HD void enter(const PillarMap& map, int64_t point) const {
    const int64_t row = map.row_of(point);
    if (row < 0) return;
    const int64_t at = begin(row) + map.point_slot[point];
    if (at < entries) points[at] = static_cast<int32_t>(point);
  }
  // The point in a slot below stored(row): a point of the cloud, whatever integers the map has.
  TORCHVOX_HD int64_t at(const PillarMap& map, int64_t begin, int64_t slot) const {
    const int64_t entry = begin + slot, point = entry < entries ? points[entry] : 0;
    return point >= 0 && point < map.count ? point : 0;
  }
};

// The mean of a pillar's n points, by the sum rule of voxelize.
template <class T, class Real>
TORCHVOX_HD void pillar_mean(const PillarMap& map, const PillarLists& lists, int64_t row, int64_t n,
                             PillarFrame<Real>& frame) {
  const int64_t begin = lists.begin(row);
  CascadeSum<Real> sum[3];
  for (int64_t slot = 0; slot < n; ++slot) {
    const int64_t point = lists.at(map, begin, slot);
    for (int axis = 0; axis < 3; ++axis) sum[axis].add(map.value<T, Real>(point, axis));
  }
  for (int axis = 0; axis < 3; ++axis) {
    frame.mean[axis] = n > 0 ? sum[axis].total() / static_cast<Real>(n) : Real(0);
  }
}

// The lists on the host, one after another.
class HostPillarLists {
 public:
  HostPillarLists(const PillarMap& map, Workspace& workspace)
      : offsets_(workspace.take<int32_t>(map.rows.rows)) {
    lists.offsets = offsets_;
    lists.entries = map.count;
    lists.points = workspace.take<int32_t>(map.count);
  }
  void fill(const PillarMap& map) const {
    int64_t next = 0;
    for (int64_t row = 0; row < map.rows.rows; ++row) {
      offsets_[row] = static_cast<int32_t>(std::min(next, map.count));
      next += map.stored(row);
    }
    std::fill_n(lists.points, map.count, 0);  // integers of no real map may leave entries unset
    for (int64_t point = 0; point < map.count; ++point) lists.enter(map, point);
  }

  PillarLists lists;

 private:
  int32_t* offsets_;
};

}  // namespace torchvox
