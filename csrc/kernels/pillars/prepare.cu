// SPDX-License-Identifier: Apache-2.0
//
// The lists of prepare.cuh on the GPU. Points: one thread per point, 8 bytes read, one word written
// at its slot. Rows: one thread per row, 16 bytes read, one atomic minimum.
#include <algorithm>
#include <cub/device/device_scan.cuh>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/pillars/prepare.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// Whether lists have an entry for every slot of every pillar: where those are at most 8 per point
// and another 2^24 (64 MiB).
bool fixed_lists(const PillarMap& map) {
  if (map.max_points <= 0) return false;
  const int64_t forced = pillar_lists_plan.value();
  if (forced != kAutomatic) return forced == 0;
  return map.max_points <= (8 * map.count + (int64_t{1} << 24)) / (map.rows.rows + 1);
}

// One thread per row: the length of its list, for the prefix sum.
__global__ void __launch_bounds__(kThreads) counts_kernel(PillarMap map, int32_t* counts) {
  for (int64_t row = global_thread(); row < map.rows.rows; row += global_stride()) {
    counts[row] = static_cast<int32_t>(map.stored(row));
  }
}

// One thread per point: clears some entries of the table and writes the point to its slot of its
// row's list. Lists of fixed length take every slot that fits, without a look at the row's number
// of points: slots from there on are never read.
__global__ void __launch_bounds__(kThreads)
    enter_points_kernel(PillarMap map, PillarLists lists, uint32_t* table, int64_t cells) {
  let_next_begin();
  clear_cells(table, cells, global_thread(), global_stride());
  for (int64_t point = global_thread(); point < map.count; point += global_stride()) {
    if (lists.offsets != nullptr) {
      lists.enter(map, point);
      continue;
    }
    const int64_t row = map.point_voxel[point], slot = map.point_slot[point];
    if (row < 0 || row >= map.rows.rows || slot < 0 || slot >= lists.stride) continue;
    lists.points[row * lists.stride + slot] = static_cast<int32_t>(point);
  }
}

// One thread per row: reads its indices and lowers its cell's entry to it. Of rows with the same
// cell the lowest stays, in whatever order threads run.
__global__ void __launch_bounds__(kThreads) enter_rows_kernel(PillarRows rows, uint32_t* table) {
  let_next_begin();
  wait_for_previous();
  for (int64_t row = global_thread(); row < rows.rows; row += global_stride()) {
    const int64_t cell = rows.cell(row);
    if (cell >= 0) atomicMin(table + cell, static_cast<uint32_t>(row));
  }
}

// One thread per four cells: sets the table's entries to kNoRow.
__global__ void __launch_bounds__(kThreads) clear_kernel(uint32_t* table, int64_t cells) {
  let_next_begin();
  clear_cells(table, cells, global_thread(), global_stride());
}

}  // namespace

PillarListWork::PillarListWork(const PillarMap& map, Workspace& workspace) {
  if (fixed_lists(map)) {
    lists.stride = map.max_points;
    lists.entries = map.rows.rows * map.max_points;
    lists.points = workspace.take<int32_t>(lists.entries);
    return;
  }
  counts_ = workspace.take<int32_t>(map.rows.rows);
  offsets_ = workspace.take<int32_t>(map.rows.rows);
  cub::DeviceScan::ExclusiveSum(nullptr, temporary_bytes_, counts_, offsets_, map.rows.rows);
  temporary_ = workspace.take<char>(static_cast<int64_t>(temporary_bytes_));
  lists.offsets = offsets_;
  lists.entries = map.count;
  lists.points = workspace.take<int32_t>(map.count);
}

cudaError_t PillarListWork::begin(const PillarMap& map, const CudaContext& context) const {
  if (offsets_ == nullptr || map.rows.rows == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(launch_items(counts_kernel, map.rows.rows, kThreads, context, map, counts_));
  size_t bytes = temporary_bytes_;
  return cub::DeviceScan::ExclusiveSum(temporary_, bytes, counts_, offsets_, map.rows.rows,
                                       context.stream);
}

cudaError_t launch_enter_points(const PillarMap& map, const PillarLists& lists, uint32_t* table,
                                int64_t cells, const CudaContext& context) {
  const unsigned blocks = blocks_for(std::max(map.count, cells / 4), kThreads, context.target);
  return launch_blocks(enter_points_kernel, blocks, kThreads, context.stream, map, lists, table,
                       cells);
}

cudaError_t launch_enter_rows(const PillarRows& rows, uint32_t* table, const CudaContext& context) {
  return launch_items_after(enter_rows_kernel, rows.rows, kThreads, context, rows, table);
}

cudaError_t launch_clear_cells(uint32_t* table, int64_t cells, const CudaContext& context) {
  return launch_blocks(clear_kernel, blocks_for(cells / 4, kThreads, context.target), kThreads,
                       context.stream, table, cells);
}

}  // namespace torchvox
