// SPDX-License-Identifier: Apache-2.0
//
// occupancy_remove_ on the CPU: regions in tasks.
#include <numeric>

#include "csrc/kernels/occupancy/remove.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const RemoveArgs& args) { return carved_bytes<Removal>(args); }

void run_cpu(const RemoveArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const Removal removal(args, workspace);
  const int64_t capacity = args.state.capacity;
  const auto each = [&](int64_t count, const auto& step) {
    for_each_index(parallel_for, count, kRegionsPerTask, [&](int64_t i) { step(removal, i); });
  };
  each(args.state.table_size, mark_leaving);
  std::partial_sum(removal.leaving, removal.leaving + capacity, removal.leaving);
  each(capacity + 1, list_hole);
  each(capacity, [](const Removal& work, int64_t slot) { vacate_region(work, slot, Lanes{}); });
  each(capacity + 1, enter_region);
}

}  // namespace torchvox
