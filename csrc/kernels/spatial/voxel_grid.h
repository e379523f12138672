// SPDX-License-Identifier: Apache-2.0
//
// Point -> cell -> 64-bit key: the one definition of the voxel of a point, for CPU, CUDA and C++
// tests.
#pragma once

#include <cmath>

#include "csrc/kernels/core/arith.h"

namespace torchvox {

// The fewest bits that hold every value in [0, count), at least 1.
inline int bits_for(uint64_t count) {
  int bits = 1;
  while (bits < 64 && (count - (count > 0)) >> bits) ++bits;
  return bits;
}

// Rank of the voxels of a sample: by first point, or by ascending key (x fastest, or z fastest).
enum class VoxelOrder { kFirst, kZyx, kXyz };

// Where a point lies.
enum class PointPlace { kInside, kOutside, kNotFinite };

struct Cell {
  int32_t x = 0;
  int32_t y = 0;
  int32_t z = 0;
};

// fp32 represents every cell index of an axis up to here.
inline constexpr int64_t kMaxCellsPerAxis = int64_t{1} << 24;

// Cells of one axis, as a float that the caller checks against [1, kMaxCellsPerAxis]: the fp32
// quotient rounded half away from zero, the rule of the mmcv and spconv kernels.
inline float cells_on_axis(float lo, float hi, float size) { return std::round((hi - lo) / size); }

// A grid of voxels over a range, and the order of their keys.
struct VoxelGrid {
  float lo[3] = {0, 0, 0};  // meters; x, y, z
  float hi[3] = {1, 1, 1};  // meters
  float size[3] = {1, 1, 1};  // meters
  int32_t cells[3] = {1, 1, 1};
  bool check_range = false;  // bounds="range": a point must also have lo <= p < hi
  bool x_major = false;  // keys ascend with (b, x, y, z) instead of (b, z, y, x)

  TORCHVOX_HD uint64_t cells_per_sample() const {
    return static_cast<uint64_t>(cells[0]) * static_cast<uint64_t>(cells[1]) *
        static_cast<uint64_t>(cells[2]);
  }

  // floor((p - lo) / size) per axis, tested as a float before it becomes an integer, so that huge
  // values are dropped alike everywhere. Between 0 and an integer bound the quotient passes the
  // tests that its floor passes, and truncation is its floor.
  template <class Real>
  TORCHVOX_HD PointPlace locate(Real x, Real y, Real z, Cell* cell) const {
    const bool inside = locate_on_axis(x, 0, &cell->x) & locate_on_axis(y, 1, &cell->y) &
        locate_on_axis(z, 2, &cell->z);
    if (inside) return PointPlace::kInside;  // then all are finite
    const bool finite = is_finite(x) && is_finite(y) && is_finite(z);
    return finite ? PointPlace::kOutside : PointPlace::kNotFinite;
  }

  // Whether p falls into one of the cells of an axis; *cell is its index, or 0.
  template <class Real>
  TORCHVOX_HD bool locate_on_axis(Real p, int axis, int32_t* cell) const {
    const Real q = (p - static_cast<Real>(lo[axis])) / static_cast<Real>(size[axis]);
    bool inside = (q >= Real(0)) & (q < static_cast<Real>(cells[axis]));
    if (check_range) {
      inside &= (p >= static_cast<Real>(lo[axis])) & (p < static_cast<Real>(hi[axis]));
    }
    *cell = static_cast<int32_t>(inside ? q : Real(0));
    return inside;
  }

  // The key of a cell of a sample: its rank among all cells of the batch.
  TORCHVOX_HD uint64_t key(int64_t sample, Cell c) const {
    const uint64_t b = static_cast<uint64_t>(sample);
    const uint64_t nx = static_cast<uint64_t>(cells[0]);
    const uint64_t ny = static_cast<uint64_t>(cells[1]);
    const uint64_t nz = static_cast<uint64_t>(cells[2]);
    const uint64_t x = static_cast<uint64_t>(c.x);
    const uint64_t y = static_cast<uint64_t>(c.y);
    const uint64_t z = static_cast<uint64_t>(c.z);
    return x_major ? ((b * nx + x) * ny + y) * nz + z : ((b * nz + z) * ny + y) * nx + x;
  }

  // The inverse of key().
  TORCHVOX_HD Cell cell_of(uint64_t key, int64_t* sample) const {
    const int fast = x_major ? 2 : 0;
    const int slow = x_major ? 0 : 2;
    // 64-bit divisions are slow on a GPU; most keys fit 32 bits.
    uint64_t rest;
    uint32_t low, middle, high;
    if (key <= 0xffffffffu) {
      uint32_t k = static_cast<uint32_t>(key);
      low = split(&k, cells[fast]);
      middle = split(&k, cells[1]);
      high = split(&k, cells[slow]);
      rest = k;
    } else {
      low = split(&key, cells[fast]);
      middle = split(&key, cells[1]);
      high = split(&key, cells[slow]);
      rest = key;
    }
    *sample = static_cast<int64_t>(rest);
    Cell c;
    c.x = static_cast<int32_t>(x_major ? high : low);
    c.y = static_cast<int32_t>(middle);
    c.z = static_cast<int32_t>(x_major ? low : high);
    return c;
  }

  // The sample of a key.
  TORCHVOX_HD int64_t block_of(uint64_t key) const {
    return static_cast<int64_t>(key / cells_per_sample());
  }

  // The middle of cell `i` of one axis, in meters.
  template <class Real>
  TORCHVOX_HD Real center(int axis, int32_t i) const {
    return static_cast<Real>(lo[axis]) +
        (static_cast<Real>(i) + static_cast<Real>(0.5)) * static_cast<Real>(size[axis]);
  }

 private:
  // Divides in place and returns the remainder.
  template <class Unsigned>
  static TORCHVOX_HD uint32_t split(Unsigned* value, int32_t divisor) {
    const Unsigned d = static_cast<Unsigned>(divisor);
    const Unsigned quotient = *value / d;
    const uint32_t remainder = static_cast<uint32_t>(*value - quotient * d);
    *value = quotient;
    return remainder;
  }
};

}  // namespace torchvox
