// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "csrc/kernels/occupancy/insert.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const InsertArgs& args) { return carved_bytes<Insertion>(args); }

void run_cpu(const InsertArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const Insertion insertion(args, workspace);
  const int64_t rows = args.given.capacity;
  int64_t highest = -1;
  for (int64_t row = 0; row < rows; ++row) {
    insertion.highest[row] = highest;
    highest = std::max(highest, args.given.region_key[row]);
  }
  for_each_index(parallel_for, rows + 1, 64 * kRegionsPerTask,
                 [&](int64_t row) { find_region(insertion, row); });
  uint64_t number = 0;
  for (int64_t row = 0; row < rows; ++row) {
    insertion.number[row] = number += insertion.numbered(row);
  }
  for_each_row<insert_region>(parallel_for, insertion, rows + 1, kRegionsPerTask);
}

}  // namespace torchvox
