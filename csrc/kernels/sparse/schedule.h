// SPDX-License-Identifier: Apache-2.0
//
// Entry of sparse_schedule: an order of the rows of a table in which those with neighbors in the
// same places lie side by side, so that products which take a tile of them at a time have few
// absent neighbors to pass over; and what the rows of each tile read. It changes no value.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/sparse/table.h"

namespace torchvox {

inline const PlanOverride sparse_order_plan{"sparse_order"};  // CUDA: 0 table order, 1 sorted

// How an int32 vector holds a schedule.
struct SparseSchedule {
  static constexpr int kTile = 128;  // rows
  static constexpr int kWords = 4;  // with a bit per offset
  static constexpr int kKeys = 1024;

  int64_t volume = 0, tiles = 0;
  int32_t* order = nullptr;  // [tiles, kTile] rows of the table, -1 behind the last
  uint32_t* offsets = nullptr;  // [tiles, kWords] those that a row of the tile has
  int32_t* sources = nullptr;  // [tiles, volume, kTile] what each reads, or -1

  static TORCHVOX_HD int64_t tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }
  static TORCHVOX_HD int64_t length(int64_t volume, int64_t rows) {
    return tiles_of(rows) * (kTile * (volume + 1) + kWords);
  }
  // data: null, or length() numbers, 16-byte aligned.
  TORCHVOX_HD SparseSchedule(int64_t volume, int64_t rows, int32_t* data)
      : volume(volume), tiles(tiles_of(rows)) {
    if (!data) return;
    order = data;
    offsets = reinterpret_cast<uint32_t*>(order + tiles * kTile);
    sources = reinterpret_cast<int32_t*>(offsets + tiles * kWords);
  }
};

// What an offset sets in the key of a row that has it: bit 8 or 9 below or above the middle along
// z, and one of eight bits for its side of the middle along y and x.
TORCHVOX_HD uint32_t schedule_bits(const SparseKernelSize& size, int64_t offset) {
  const auto side = [&offset](int64_t cells) {
    const int64_t at = 2 * (offset % cells);
    offset /= cells;
    return static_cast<int>(at > cells - 1) - static_cast<int>(at < cells - 1);
  };
  const int x = side(size.x), y = side(size.y), z = side(size.z), column = 3 * y + x + 4;
  const uint32_t plane = z == 0 ? 0u : z < 0 ? 256u : 512u;
  return column == 4 ? plane : plane | 1u << (column - (column > 4 ? 1 : 0));
}
// Keys descend from those with both planes along z, the heaviest rows, and then in the Gray order
// of columns, in which neighbors differ in one. Rows without neighbors and not in use come last.
TORCHVOX_HD uint32_t schedule_key(uint32_t bits) {
  uint32_t columns = bits & 255;
  for (int step = 1; step < 8; step *= 2) columns ^= columns >> step;
  return SparseSchedule::kKeys - 1 - ((bits & 768) | columns);
}

struct SparseScheduleArgs {
  SparseTable table;
  SparseKernelSize kernel_size;
  int32_t* out = nullptr;  // [SparseSchedule::length()]
};
TORCHVOX_KERNEL(SparseScheduleArgs);

#ifdef TORCHVOX_CUDA
// Room to sort the rows of a table.
struct SparseOrderWork {
  int64_t share;  // rows of a block
  int blocks;
  int32_t* counts;  // [blocks, kKeys] rows of a block that have a key
  uint16_t* keys;  // [rows]

  SparseOrderWork(int64_t rows, Workspace& workspace);
};

// Begins a chain of launches that write the rows of the table to `order`, [rows], stably by key.
cudaError_t launch_order(const SparseTable& table, const SparseKernelSize& size,
                         const SparseOrderWork& work, int32_t* order, const CudaContext& context);
// The rest of a schedule: the next launch of the chain, or if not `sorted`, for rows in the order
// of the table, the first.
cudaError_t launch_tiles(const SparseTable& table, const SparseSchedule& schedule, bool sorted,
                         const CudaContext& context);
#endif

}  // namespace torchvox
