// SPDX-License-Identifier: Apache-2.0
//
// The arguments that every bird's-eye-view op shares.
#pragma once

#include "csrc/kernels/bev/grid.h"
#include "csrc/ops/core/op.h"

namespace torchvox {

inline BevGrid parse_grid(const char* op, c10::ArrayRef<double> range, c10::ArrayRef<int64_t> size,
                          std::string_view orientation) {
  check_range(op, range);
  check_value(size.size() == 2, op, "size must be (nx, ny)", size);
  // Above 2^24 cells fp32 cannot name them all.
  check_value(size[0] >= 1 && size[1] >= 1 && size[0] <= (1 << 24) && size[1] <= (1 << 24), op,
              "size must be (nx, ny) with each in [1, 2^24]", size);
  BevGrid grid;
  for (int axis = 0; axis < 3; ++axis) {
    grid.lower[axis] = static_cast<float>(range[axis]);
    grid.upper[axis] = static_cast<float>(range[axis + 3]);
  }
  for (int axis = 0; axis < 2; ++axis) {
    grid.resolution[axis] = (grid.upper[axis] - grid.lower[axis]) / static_cast<float>(size[axis]);
    check_value(std::isfinite(grid.resolution[axis]) && grid.resolution[axis] > 0.f, op,
                "point_cloud_range must give cells of a positive, finite float32 size", range,
                " in ", size, " cells");
  }
  check_value(std::isfinite(grid.upper[2] - grid.lower[2]), op,
              "point_cloud_range must have a finite float32 height", range);
  grid.nx = size[0];
  grid.ny = size[1];
  grid.orientation = parse_choice<BevOrientation>(op, "orientation", orientation,
                                                  {{"grid", BevOrientation::kGrid},
                                                   {"image", BevOrientation::kImage},
                                                   {"north_up", BevOrientation::kNorthUp}});
  return grid;
}

inline int64_t rows_of(const BevGrid& grid) {
  return grid.orientation == BevOrientation::kImage ? grid.nx : grid.ny;
}
inline int64_t columns_of(const BevGrid& grid) {
  return grid.orientation == BevOrientation::kImage ? grid.ny : grid.nx;
}

}  // namespace torchvox
