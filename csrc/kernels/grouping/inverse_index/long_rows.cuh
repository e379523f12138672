// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {

// Notes what the sums need to know of a row, whose list is [begin, end): which groups begin after
// it, and, when it has many chunks, a task for each. The tasks of a row stand together; which row
// comes first is of no consequence. One thread a row.
__device__ inline void note_row(const SlotLists& lists, int64_t cloud, int64_t row, uint32_t begin,
                                uint32_t end) {
  int32_t* const group_rows = lists.group_rows + cloud * (lists.groups() + 1);
  const auto next = static_cast<int32_t>(row + 1);
  int64_t group = (int64_t{begin} + row) / kGroupKeys + 1;
  int64_t last = (int64_t{end} + row + 1) / kGroupKeys;
  if (row == 0) group_rows[0] = 0;
  if (row + 1 == lists.rows) last = lists.groups();
  for (; group <= last; ++group) group_rows[group] = next;

  const uint32_t slots = end - begin;
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
