// SPDX-License-Identifier: Apache-2.0
//
// The first steps of pillar kernels on the GPU: the list of each pillar's points, and the row of
// each cell of the canvas.
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/pillars/map.h"

namespace torchvox {

// Memory for the lists and the prefix sum of their lengths. Lists with a fixed number of entries
// per pillar need no prefix sum, and no thread reads or writes unused entries.
class PillarListWork {
 public:
  PillarListWork(const PillarMap& map, Workspace& workspace);
  // Launches the prefix sum that gives the lists' offsets, if they need one.
  cudaError_t begin(const PillarMap& map, const CudaContext& context) const;

  PillarLists lists;

 private:
  int32_t* counts_ = nullptr;  // [rows]
  int32_t* offsets_ = nullptr;  // [rows]
  void* temporary_ = nullptr;
  size_t temporary_bytes_ = 0;
};

// A table holds the lowest row of each cell, kNoRow where there is none.
inline constexpr uint32_t kNoRow = 0xffffffffu;

__device__ __forceinline__ void clear_cells(uint32_t* table, int64_t cells, int64_t thread,
                                            int64_t threads) {
  const uint4 none = {kNoRow, kNoRow, kNoRow, kNoRow};
  for (int64_t i = thread; i < cells / 4; i += threads) reinterpret_cast<uint4*>(table)[i] = none;
  for (int64_t i = cells / 4 * 4 + thread; i < cells; i += threads) table[i] = kNoRow;
}

// Both of these in one launch: clears the table of `cells` (none where null) and enters the points
// into the lists.
cudaError_t launch_enter_points(const PillarMap& map, const PillarLists& lists, uint32_t* table,
                                int64_t cells, const CudaContext& context);
// After it in a chain of launches: the rows into the table.
cudaError_t launch_enter_rows(const PillarRows& rows, uint32_t* table, const CudaContext& context);
// The first of a chain where there are no points.
cudaError_t launch_clear_cells(uint32_t* table, int64_t cells, const CudaContext& context);

// A canvas whose cells without a pillar get zeros, in pieces as wide as its rows allow.
struct CanvasZeros {
  void* canvas = nullptr;  // [cells] rows of row_bytes
  const uint32_t* table = nullptr;  // [cells]
  int64_t cells = 0, row_bytes = 0;
  int piece_bytes = 16;  // 16, or the size of an element
  int lanes = 1;  // threads per cell, a power of two up to 32

  CanvasZeros() = default;
  CanvasZeros(void* canvas, const uint32_t* table, int64_t cells, int64_t row_elements, DType dtype)
      : canvas(canvas), table(table), cells(cells), row_bytes(row_elements * bytes_of(dtype)) {
    piece_bytes = row_bytes % 16 == 0 ? 16 : static_cast<int>(bytes_of(dtype));
    while (lanes < 32 && lanes * piece_bytes < row_bytes) lanes *= 2;
  }
  int64_t threads() const { return cells * lanes; }
};

// All threads of a block write the zeros of the cells [begin, end).
template <class Piece>
__device__ __forceinline__ void write_zeros(const CanvasZeros& zeros, int64_t begin, int64_t end) {
  constexpr int kAtOnce = 4;  // cells whose table entries are fetched together
  const int64_t pieces = zeros.row_bytes / static_cast<int64_t>(sizeof(Piece));
  const int lane = static_cast<int>(threadIdx.x) % zeros.lanes;
  const int group = static_cast<int>(threadIdx.x) / zeros.lanes;
  const int groups = static_cast<int>(blockDim.x) / zeros.lanes;
  for (int64_t first = begin + group; first < end; first += kAtOnce * groups) {
    uint32_t row[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t cell = first + k * groups;
      row[k] = cell < end ? zeros.table[cell] : 0;
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (row[k] != kNoRow) continue;
      Piece* to = static_cast<Piece*>(zeros.canvas) + (first + k * groups) * pieces;
      for (int64_t piece = lane; piece < pieces; piece += zeros.lanes) to[piece] = Piece{};
    }
  }
}

__device__ __forceinline__ void write_zeros(const CanvasZeros& zeros, int64_t begin, int64_t end) {
  switch (zeros.piece_bytes) {
    case 16: return write_zeros<uint4>(zeros, begin, end);
    case 8: return write_zeros<uint2>(zeros, begin, end);
    case 4: return write_zeros<uint32_t>(zeros, begin, end);
    default: return write_zeros<uint16_t>(zeros, begin, end);
  }
}

// Cells that a block takes at a time.
inline constexpr int64_t kCellsAtOnce = 128;

// Blocks write the zeros of all cells: each block takes the next kCellsAtOnce cells from the
// counter `next` whenever it is free. The counter starts as a cleared entry of the table, kNoRow.
__device__ __forceinline__ void share_zeros(const CanvasZeros& zeros, uint32_t* next) {
  __shared__ uint32_t mine;
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) mine = atomicAdd(next, 1u) + 1u;  // kNoRow + 1 is 0
    __syncthreads();
    const int64_t begin = mine * kCellsAtOnce;
    if (begin >= zeros.cells) return;
    const int64_t end = begin + kCellsAtOnce < zeros.cells ? begin + kCellsAtOnce : zeros.cells;
    write_zeros(zeros, begin, end);
  }
}

}  // namespace torchvox
