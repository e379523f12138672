// SPDX-License-Identifier: Apache-2.0
//
// The lists of prepare.cuh on the GPU; and pillar_scatter, of which one group of lanes per cell
// writes the row or zeros, each byte once, in words of up to 16 bytes.
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/pillars/prepare.cuh"
#include "csrc/kernels/pillars/scatter.h"

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

namespace {

// One group of canvas.lanes lanes per cell: reads the cell's row from the table and writes that
// row's features to the canvas, or zeros.
template <class Piece>
__global__ void __launch_bounds__(kThreads) scatter_kernel(CanvasZeros canvas, const Piece* feats) {
  wait_for_previous();
  const int64_t pieces = canvas.row_bytes / static_cast<int64_t>(sizeof(Piece));
  const int lane = static_cast<int>(global_thread() % canvas.lanes);
  for (int64_t cell = global_thread() / canvas.lanes; cell < canvas.cells;
       cell += global_stride() / canvas.lanes) {
    const uint32_t row = canvas.table[cell];
    Piece* to = static_cast<Piece*>(canvas.canvas) + cell * pieces;
    for (int64_t piece = lane; piece < pieces; piece += canvas.lanes) {
      to[piece] = row == kNoRow ? Piece{} : feats[row * pieces + piece];
    }
  }
}

// One thread per value of grad_feats, channels fastest: the gradient of the row's cell, or 0 where
// the cell took its values from another row.
template <class Element>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(PillarScatterBackwardArgs args, const uint32_t* table) {
  wait_for_previous();
  for (int64_t i = global_thread(); i < args.rows.rows * args.channels; i += global_stride()) {
    const int64_t row = i / args.channels, channel = i % args.channels;
    const int64_t cell = args.rows.cell(row);
    Element value{};
    if (cell >= 0 && table[cell] == static_cast<uint32_t>(row)) {
      const int64_t at = args.rows.strided(cell, channel, args.grad_strides);
      value = static_cast<const Element*>(args.grad)[at];
    }
    static_cast<Element*>(args.grad_feats)[i] = value;
  }
}

cudaError_t enter_rows(const PillarRows& rows, uint32_t* table, const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(launch_clear_cells(table, rows.cells(), context));
  return launch_enter_rows(rows, table, context);
}

template <class Piece>
cudaError_t launch_scatter(const PillarScatterArgs& args, const CanvasZeros& canvas,
                           const CudaContext& context) {
  return launch_items_after(scatter_kernel<Piece>, canvas.threads(), kThreads, context, canvas,
                            static_cast<const Piece*>(args.feats));
}

}  // namespace

cudaError_t launch(const PillarScatterArgs& args, void* memory, const CudaContext& context) {
  uint32_t* table = static_cast<uint32_t*>(memory);
  const CanvasZeros canvas(args.canvas, table, args.rows.cells(), args.channels, args.dtype);
  if (canvas.cells * canvas.row_bytes == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(enter_rows(args.rows, table, context));
  // The tensor of features may be a view that starts at any element.
  const bool aligned = reinterpret_cast<uintptr_t>(args.feats) % 16 == 0;
  if (aligned && canvas.piece_bytes == 16) return launch_scatter<uint4>(args, canvas, context);
  return with_word(bytes_of(args.dtype), [&](auto word) {
    return launch_scatter<decltype(word)>(args, canvas, context);
  });
}

cudaError_t launch(const PillarScatterBackwardArgs& args, void* memory,
                   const CudaContext& context) {
  uint32_t* table = static_cast<uint32_t*>(memory);
  if (args.rows.rows * args.channels == 0) return cudaSuccess;
  TORCHVOX_CUDA_CHECK(enter_rows(args.rows, table, context));
  return with_word(bytes_of(args.dtype), [&](auto word) {
    return launch_items_after(gather_kernel<decltype(word)>, args.rows.rows * args.channels,
                              kThreads, context, args, table);
  });
}

}  // namespace torchvox
