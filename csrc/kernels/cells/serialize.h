// SPDX-License-Identifier: Apache-2.0
//
// Entry of serialize: the codes of cells along space-filling curves, and the rows in their order.
//
//   code  of each row along each curve
//   pass  one digit of a stable radix sort, all curves side by side; the last one writes both
//         permutations
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/spatial/curves.h"

namespace torchvox {

struct Curve {
  bool hilbert = false;  // else Morton
  bool transposed = false;  // x and y are swapped first
};

inline constexpr int kMostCurves = 4;

struct SerializeArgs {
  CloudBatch cells;  // packed [rows, 3] integers, whatever its dtype says
  bool wide = false;  // int64 instead of int32
  IndexArray batch_index;  // [rows]; not given: the cloud of each row
  Curve curves[kMostCurves];
  int num_curves = 1;
  KeyFrame frame;  // the bits per axis, in Morton layout
  int code_bits = kMostKeyBits;  // bits of a code, including those of the batch
  int64_t* codes = nullptr;  // [curves, rows]; kNoVoxelKey
  int64_t* order = nullptr;  // [curves, rows]: rows in the order of their codes, without one last
  int64_t* inverse = nullptr;  // [curves, rows]

  struct Row {
    int64_t batch;  // -1: no code
    uint32_t cell[3];
  };
  // Reads a row; it gets no code unless it belongs to a cloud and its cell lies in the cube.
  TORCHVOX_HD Row load(int64_t row) const {
    const int64_t batch = batch_index.given() ? batch_index[row] : cells.packed_owner(row);
    bool has_code = batch >= 0 && batch >> (kMostKeyBits - 3 * frame.bits) == 0;
    Row loaded = {};
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t i = IndexArray{cells.data, wide}[row * cells.row_stride + axis];
      has_code &= static_cast<uint64_t>(i) >> frame.bits == 0;
      loaded.cell[axis] = static_cast<uint32_t>(i);
    }
    loaded.batch = has_code ? batch : -1;
    return loaded;
  }
  TORCHVOX_HD int64_t code(const Row& row, const Curve& curve) const {
    if (row.batch < 0) return kNoVoxelKey;
    const uint32_t x = row.cell[0], y = row.cell[1];
    uint32_t axes[3] = {curve.transposed ? y : x, curve.transposed ? x : y, row.cell[2]};
    if (curve.hilbert) to_hilbert(axes, frame.bits);
    const uint64_t cell[3] = {axes[0], axes[1], axes[2]};
    return static_cast<int64_t>(frame.key(row.batch, cell));
  }
  // Bits to sort by: one more than a code has, which is set where there is no code.
  int sort_bits() const { return code_bits + 1; }
};

TORCHVOX_KERNEL(SerializeArgs);

}  // namespace torchvox
