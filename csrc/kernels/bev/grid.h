// SPDX-License-Identifier: Apache-2.0
//
// The grid of a bird's-eye-view raster: which cell a point falls into, where that cell lies in the
// image, and what is counted of the points that fall into none.
#pragma once

#include <cstdint>

#include "csrc/kernels/core/arith.h"

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
  int64_t nx = 0;
  int64_t ny = 0;
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
    const T qx = floor((x - T(lower[0])) / T(resolution[0]));
    const T qy = floor((y - T(lower[1])) / T(resolution[1]));
    if (!(qx >= T(0) && qx < T(nx) && qy >= T(0) && qy < T(ny))) return BevFate::kOutOfRange;
    *cell = address(static_cast<int64_t>(qx), static_cast<int64_t>(qy));
    return BevFate::kUsed;
  }
};

}  // namespace torchvox
