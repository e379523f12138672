// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/grouping/slot_lists.h"

namespace torchvox {

// Notes a row of many chunks as tasks. The tasks of a row stand together; which row comes first is
// of no consequence.
__device__ inline void note_long_row(const SlotLists& lists, int64_t cloud, int64_t row,
                                     uint32_t slots) {
  if (slots <= kSumChunk) return;
  const int chunks = static_cast<int>((slots + kSumChunk - 1) / kSumChunk);
  const int first = atomicAdd(lists.long_rows.count, chunks);
  for (int chunk = 0; chunk < chunks; ++chunk) {
    lists.long_rows.tasks[first + chunk] = {static_cast<int32_t>(cloud), static_cast<int32_t>(row),
                                            chunk, first};
  }
  lists.long_rows.arrived[first] = 0;
}

}  // namespace torchvox
