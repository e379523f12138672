// SPDX-License-Identifier: Apache-2.0
//
// Entry of bev_max_height and its gradient, and what the CPU and CUDA implementations share: how
// heights are encoded, and the table of keys.
#pragma once

#include "csrc/kernels/bev/grid.h"
#include "csrc/kernels/core/map.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox {

inline const PlanOverride bev_table_plan{"bev_table"};  // CUDA: a BevPlan, where it fits

enum class HeightFormat { kFloat, kUInt8, kUInt16 };

inline int64_t height_bytes(HeightFormat format) {
  return format == HeightFormat::kFloat ? 4 : (format == HeightFormat::kUInt16 ? 2 : 1);
}

// How a height is stored.
struct HeightCode {
  HeightFormat format = HeightFormat::kFloat;
  float fill = 0.f;  // float output: value of empty cells; integer outputs hold 0 there
  int lowest_code = 1;  // uint8: code of z0
  float z0 = 0.f;  // meters
  float z1 = 0.f;  // meters

  // Codes 0 (empty), lowest_code .. 255.
  TORCHVOX_HD uint8_t to_uint8(float z) const {
    const float t = (z - z0) / (z1 - z0);
    const float code = floorf(t * static_cast<float>(255 - lowest_code));
    const int value = lowest_code + static_cast<int>(code);
    return static_cast<uint8_t>(value < 255 ? value : 255);
  }
  // Millimeters above z0, plus one; saturates.
  TORCHVOX_HD uint16_t to_uint16(float z) const {
    const float millimeters = floorf((z - z0) * 1000.f);
    return millimeters < 65534.f ? static_cast<uint16_t>(1 + static_cast<int>(millimeters))
                                 : uint16_t{65535};
  }
};

struct BevMaxHeightArgs {
  CloudBatch points;
  BevGrid grid;
  HeightCode code;
  void* height = nullptr;  // [batches, cells], float, uint8_t or uint16_t
  int32_t* top_index = nullptr;  // [batches, cells], or null
  int32_t* counts = nullptr;  // [batches + 1, kBevCounts]
};

TORCHVOX_KERNEL(BevMaxHeightArgs);

// Gradient of a float height image: the top point of a cell takes the cell's gradient in column z,
// everything else is 0.
struct BevMaxHeightBackwardArgs {
  CloudBatch points;
  BevGrid grid;
  const float* grad_height = nullptr;  // [batches, cells]
  const int32_t* top_index = nullptr;  // [batches, cells]
  void* grad_points = nullptr;  // [rows, columns] contiguous, dtype of the points
};

// A cell of the table holds the maximum so far as an integer that orders as the heights do; 0 is an
// empty cell, since no finite height maps to it. A 64-bit key also holds the row and breaks ties
// towards the lowest one; its last bit is set, so that the key minus one can stand for a point that
// has yet to be entered.
TORCHVOX_HD uint32_t height_key(float z, int64_t, uint32_t) {
  return ordered_bits(z + 0.f);  // + 0 makes -0 and +0 one height
}
TORCHVOX_HD uint64_t height_key(float z, int64_t row, uint64_t) {
  return (uint64_t{ordered_bits(z + 0.f)} << 32) | (0xffffffffu - 2 * uint32_t(row));
}
TORCHVOX_HD float key_height(uint32_t key) { return from_ordered_bits(key); }
TORCHVOX_HD float key_height(uint64_t key) { return from_ordered_bits(uint32_t(key >> 32)); }
TORCHVOX_HD int32_t key_row(uint32_t) { return -1; }
TORCHVOX_HD int32_t key_row(uint64_t key) { return int32_t(0x7fffffffu - (uint32_t(key) >> 1)); }

// CUDA: how the cells without points get their values in the table and the outputs.
enum class BevPlan {
  kDense,  // the table is cleared, and every cell of the outputs is computed from it
  kCleared,  // table and outputs are cleared, and each top point writes its cell
  kStarted,  // the same without clearing the table: points first write the cells that they will
             // read
  kSmall,  // a single block with the table in its shared memory
};
BevPlan plan_of(const BevMaxHeightArgs& args);

// The most cells for which kSmall has room, and the most points for which it is chosen: one per
// thread.
inline constexpr int64_t kSmallCells = 4096;
inline constexpr int64_t kSmallRows = 1024;

inline int64_t cells_of(const BevMaxHeightArgs& args) {
  return args.points.clouds * args.grid.cells();
}

// Whether keys are 64 bits and hold a row. Otherwise the lowest row is searched among the highest
// points.
inline bool has_wide_keys(const BevMaxHeightArgs& args, BevPlan plan) {
  const bool indexed = plan == BevPlan::kDense || plan == BevPlan::kSmall;
  return plan == BevPlan::kStarted || (indexed && args.top_index != nullptr);
}

template <class Key>
struct BevTable {
  Key* keys;  // [batches * cells]
  int32_t* counters;  // [batches, kBevCounts], for the host
  int64_t key_bytes, bytes;

  BevTable(const BevMaxHeightArgs& args, void* base) {
    Workspace workspace(base);
    keys = workspace.take<Key>(cells_of(args));
    key_bytes = workspace.bytes();
    counters = workspace.take<int32_t>(args.points.clouds * kBevCounts);
    bytes = workspace.bytes();
  }
};

// Enters one used point into the table; true when its cell was empty.
template <class Key>
struct HeightVisit {
  Key* keys;

  TORCHVOX_HD bool operator()(const BevPoint& point, int64_t row) const {
    return atomic_raise(&keys[point.cell], height_key(point.z, row, Key{}));
  }
};

TORCHVOX_HD void write_height(const BevMaxHeightArgs& args, int64_t cell, float z) {
  switch (args.code.format) {
    case HeightFormat::kFloat: static_cast<float*>(args.height)[cell] = z; break;
    case HeightFormat::kUInt8:
      static_cast<uint8_t*>(args.height)[cell] = args.code.to_uint8(z);
      break;
    case HeightFormat::kUInt16:
      static_cast<uint16_t*>(args.height)[cell] = args.code.to_uint16(z);
      break;
  }
}

// Writes one cell of the outputs.
template <class Key>
TORCHVOX_HD void write_cell(const BevMaxHeightArgs& args, int64_t cell, Key key) {
  if (key != 0) {
    write_height(args, cell, key_height(key));
  } else if (args.code.format == HeightFormat::kFloat) {
    static_cast<float*>(args.height)[cell] = args.code.fill;
  } else if (args.code.format == HeightFormat::kUInt8) {
    static_cast<uint8_t*>(args.height)[cell] = 0;
  } else {
    static_cast<uint16_t*>(args.height)[cell] = 0;
  }
  if (args.top_index) args.top_index[cell] = key == 0 ? -1 : key_row(key);
}

// Gradient row of one point.
template <class T>
TORCHVOX_HD void write_point_gradient(const BevMaxHeightBackwardArgs& args, int64_t row) {
  T* out = static_cast<T*>(args.grad_points) + row * args.points.columns;
  float gradient = 0.f;
  const int64_t sample = args.points.packed_owner(row);
  if (sample >= 0) {
    const BevPoint point = locate_point<T>(args.points, args.grid, row, sample);
    if (point.fate == BevFate::kUsed && args.top_index[point.cell] == row) {
      gradient = args.grad_height[point.cell];
    }
  }
  for (int64_t column = 0; column < args.points.columns; ++column) {
    out[column] = narrow<T>(column == 2 ? gradient : 0.f);
  }
}
TORCHVOX_TYPED_MAP(BevMaxHeightBackwardArgs, with_point_type, args.points.dtype,
                   write_point_gradient, args.points.rows, kBevPointsPerTask, 256);

}  // namespace torchvox
