// SPDX-License-Identifier: Apache-2.0
//
// What pillar kernels on the GPU begin with: the list of each pillar's points, and the row of each
// cell of the canvas.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/pillars/lists.h"

namespace torchvox {

// Lists with a fixed number of entries a pillar need no prefix sum, and only entries in use are
// ever touched.
class PillarListWork {
 public:
  PillarListWork(const PillarMap& map, Workspace& workspace);
  // In order: nothing, or the offsets of the lists.
  cudaError_t begin(const PillarMap& map, const CudaContext& context) const;

  PillarLists lists;

 private:
  int32_t* counts_ = nullptr;  // [rows]
  int32_t* offsets_ = nullptr;  // [rows]
  void* temporary_ = nullptr;
  size_t temporary_bytes_ = 0;
};

// Lowest row of each cell, kNoRow where none is; cleared before rows enter.
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

}  // namespace torchvox
