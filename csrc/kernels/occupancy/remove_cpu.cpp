// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/occupancy/remove.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const RemoveArgs& args) { return carved_bytes<Removal>(args); }

void run_cpu(const RemoveArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const Removal removal(args, workspace);
  const OccupancyState& state = args.state;
  for (int64_t slot = 0; slot < state.capacity; ++slot) {
    removal.leaving[slot] = static_cast<int32_t>(removal.leaving_below(slot)) + args.leaves(slot);
  }
  const int64_t per_task = 64 * kRegionsPerTask;
  for_each_index(parallel_for, state.table_size, per_task,
                 [&](int64_t i) { list_hole(removal, i); });
  for_each_row<vacate_region>(parallel_for, removal, state.capacity, kRegionsPerTask);
  for_each_index(parallel_for, state.capacity + 1, per_task,
                 [&](int64_t i) { enter_region(removal, i); });
}

}  // namespace torchvox
