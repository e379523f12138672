// SPDX-License-Identifier: Apache-2.0
//
// Entry of voxel_keys and voxel_cells: point -> cell of an unbounded lattice -> 63-bit key, and
// back. The one definition for CPU, CUDA and C++ tests.
#pragma once

#include "csrc/kernels/core/map.h"
#include "csrc/kernels/spatial/curves.h"

namespace torchvox {

// Columns of `counts`: row 0 is the whole call, row 1 + b is sample b.
enum KeyCount { kPointsKeyed, kPointsOutsideFrame, kPointsWithoutPlace, kKeyCounts };

struct VoxelKeysArgs {
  CloudBatch points;
  bool integers = false;  // points are int32, and their dtype is ignored
  double origin[3] = {0, 0, 0};
  double size[3] = {1, 1, 1};
  KeyFrame frame;
  int64_t* keys = nullptr;  // [rows]
  int32_t* counts = nullptr;  // [clouds + 1, kKeyCounts]
  int64_t counts_stride = kKeyCounts;  // of a row; with another value the caller clears the counts

  // cell = floor((p - origin) / size) - lower; false if that is outside the frame. Quotients below
  // 2^62 are converted to integers, so that both ends are compared exactly.
  template <class Real>
  TORCHVOX_HD bool locate_on_axis(Real p, int axis, uint64_t* cell) const {
    constexpr Real kReach = static_cast<Real>(int64_t{1} << 62);
    const Real q = (p - static_cast<Real>(origin[axis])) / static_cast<Real>(size[axis]);
    const bool near = q > -kReach && q < kReach;
    int64_t i = static_cast<int64_t>(near ? q : Real(0));
    i -= static_cast<Real>(i) > q;
    *cell = static_cast<uint64_t>(i) - static_cast<uint64_t>(frame.lower[axis]);
    return near && *cell >> frame.bits == 0;
  }

  // The key of a point, or kNoVoxelKey; and its column of `counts`.
  template <class Real>
  TORCHVOX_HD int64_t locate(int64_t sample, Real x, Real y, Real z, KeyCount* column) const {
    uint64_t cell[3];
    const bool inside = locate_on_axis(x, 0, &cell[0]) & locate_on_axis(y, 1, &cell[1]) &
        locate_on_axis(z, 2, &cell[2]);
    if (inside) {  // then all are finite
      *column = kPointsKeyed;
      return static_cast<int64_t>(frame.key(sample, cell));
    }
    const bool finite = is_finite(x) && is_finite(y) && is_finite(z);
    *column = finite ? kPointsOutsideFrame : kPointsWithoutPlace;
    return kNoVoxelKey;
  }

  // The same for a row of storage type T, which is Real or narrower.
  template <class T, class Real>
  TORCHVOX_HD int64_t locate_row(int64_t row, int64_t sample, KeyCount* column) const {
    const T* const p = static_cast<const T*>(points.data) + row * points.row_stride;
    return locate<Real>(sample, coordinate(p[0]), coordinate(p[1]), coordinate(p[2]), column);
  }

 private:
  template <class T>
  static TORCHVOX_HD auto coordinate(T x) {
    return widen(x);
  }
  static TORCHVOX_HD double coordinate(int32_t x) { return x; }
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(VoxelKeysArgs);

// The inverse: b, z, y, x of each key, all -1 for negative ones.
struct VoxelCellsArgs {
  const int64_t* keys = nullptr;  // [rows]
  int64_t rows = 0;
  KeyFrame frame;
  int32_t* cells = nullptr;  // [rows, 4]
};

TORCHVOX_HD void write_cells(const VoxelCellsArgs& args, int64_t row) {
  write_cell(args.frame, args.keys[row], args.cells + 4 * row);
}
TORCHVOX_MAP(VoxelCellsArgs, write_cells, args.rows, 4096, 256);

// Calls body(T{}, Real{}) with the storage type of the points and that of their arithmetic.
template <class Body>
auto with_key_types(const VoxelKeysArgs& args, const Body& body) {
  if (args.integers) return body(int32_t{}, double{});
  return with_point_type(args.points.dtype,
                         [&](auto type) { return body(type, compute_t<decltype(type)>{}); });
}

}  // namespace torchvox
