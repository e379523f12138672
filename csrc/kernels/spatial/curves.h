// SPDX-License-Identifier: Apache-2.0
//
// Cells of a cube as codes along the Morton and the Hilbert curve: 30-bit codes that put neighbors
// of a cloud together (no rounding there can change a result), and the 63-bit keys that name voxels
// and cells of a batch exactly.
#pragma once

#include <cstring>

#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

// The low 10 bits of x with two zeros before each, as in a code of 30 bits.
TORCHVOX_HD uint32_t spread_bits(uint32_t x) {
  x = (x | (x << 16)) & 0x030000ffu;
  x = (x | (x << 8)) & 0x0300f00fu;
  x = (x | (x << 4)) & 0x030c30c3u;
  return (x | (x << 2)) & 0x09249249u;
}

// The place of a point's cell on the Morton curve, x lowest; `cells` is a power of two, at most
// 1024.
TORCHVOX_HD uint32_t morton_code(const Point3& p, const float low[3], float scale, uint32_t cells) {
  return spread_bits(cell_of(p.a, low[0], scale, cells)) |
      spread_bits(cell_of(p.b, low[1], scale, cells)) << 1 |
      spread_bits(cell_of(p.c, low[2], scale, cells)) << 2;
}

// Turns a cell of a cube of 2^bits cells a side, bits 0 to 31, into its place on the cube's Hilbert
// curve: the bits of the three axes interleaved, the first's highest. Cells next to each other on
// the curve share a face. (Skilling, "Programming the Hilbert curve", 2004.)
TORCHVOX_HD void to_hilbert(uint32_t (&axis)[3], int bits) {
  const uint32_t top = (uint32_t{1} << bits) >> 1;
  for (uint32_t bit = top; bit > 1; bit /= 2) {
    const uint32_t below = bit - 1;
    for (uint32_t& other : axis) {
      const bool set = other & bit;
      const uint32_t change = (axis[0] ^ other) & below;
      axis[0] ^= set ? below : change;
      other ^= set ? 0 : change;
    }
  }
  axis[1] ^= axis[0];
  axis[2] ^= axis[1];
  uint32_t flip = 0;
  for (uint32_t bit = top; bit > 1; bit /= 2) flip ^= axis[2] & bit ? bit - 1 : 0;
  for (uint32_t& each : axis) each ^= flip;
}

// The place of a cell on the Hilbert curve, with at most 10 bits per axis.
TORCHVOX_HD uint32_t hilbert_code(uint32_t x, uint32_t y, uint32_t z, int bits) {
  uint32_t axis[3] = {x, y, z};
  to_hilbert(axis, bits);
  return spread_bits(axis[0]) << 2 | spread_bits(axis[1]) << 1 | spread_bits(axis[2]);
}

enum class KeyLayout { kMorton, kZyx };

inline constexpr int64_t kNoVoxelKey = -1;
inline constexpr int kMostKeyBits = 63;
inline constexpr int kMostCellBits = kMostKeyBits / 3;  // of an axis

// The low 21 bits of x with two zeros after each, as in a code of 63 bits; and the inverse.
TORCHVOX_HD uint64_t spread_bits(uint64_t x) {
  x = (x | x << 32) & 0x001f00000000ffffu;
  x = (x | x << 16) & 0x001f0000ff0000ffu;
  x = (x | x << 8) & 0x100f00f00f00f00fu;
  x = (x | x << 4) & 0x10c30c30c30c30c3u;
  return (x | x << 2) & 0x1249249249249249u;
}
TORCHVOX_HD uint64_t gather_bits(uint64_t x) {
  x &= 0x1249249249249249u;
  x = (x | x >> 2) & 0x10c30c30c30c30c3u;
  x = (x | x >> 4) & 0x100f00f00f00f00fu;
  x = (x | x >> 8) & 0x001f0000ff0000ffu;
  x = (x | x >> 16) & 0x001f00000000ffffu;
  return (x | x >> 32) & 0x00000000001fffffu;
}

// A box of cells and the keys of the cells in it: 2^bits cells per axis, beginning at `lower`.
struct KeyFrame {
  int64_t lower[3] = {0, 0, 0};  // x, y, z
  int bits = kMostCellBits;
  KeyLayout layout = KeyLayout::kMorton;

  // Key of a cell, whose x, y and z are counted from `lower`; the sample stands above its bits.
  TORCHVOX_HD uint64_t key(int64_t sample, const uint64_t cell[3]) const {
    const uint64_t place = layout == KeyLayout::kMorton
        ? spread_bits(cell[0]) << 2 | spread_bits(cell[1]) << 1 | spread_bits(cell[2])
        : (cell[2] << bits | cell[1]) << bits | cell[0];
    return static_cast<uint64_t>(sample) << (3 * bits) | place;
  }
  // The inverse, one axis of it.
  TORCHVOX_HD uint64_t cell_of(uint64_t key, int axis) const {
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    if (layout == KeyLayout::kMorton) return gather_bits(key >> (2 - axis)) & mask;
    return key >> (axis * bits) & mask;
  }
};

// b, z, y, x of a key into out [4], 16-byte aligned; all -1 for a negative key.
TORCHVOX_HD void write_cell(const KeyFrame& frame, int64_t key, int32_t* out) {
  int32_t cell[4] = {-1, -1, -1, -1};
  for (int axis = 0; axis < 3 && key >= 0; ++axis) {
    cell[3 - axis] = static_cast<int32_t>(
        frame.lower[axis] + static_cast<int64_t>(frame.cell_of(static_cast<uint64_t>(key), axis)));
  }
  if (key >= 0) cell[0] = static_cast<int32_t>(key >> (3 * frame.bits));
#ifdef __CUDA_ARCH__
  *reinterpret_cast<int4*>(out) = make_int4(cell[0], cell[1], cell[2], cell[3]);
#else
  memcpy(out, cell, sizeof(cell));
#endif
}

}  // namespace torchvox
