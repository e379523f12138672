// SPDX-License-Identifier: Apache-2.0
//
// occupancy_remove_ on the CPU: regions in tasks.
#include <algorithm>
#include <numeric>

#include "csrc/kernels/occupancy/remove.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const RemoveArgs& args) { return carved_bytes<Removal>(args); }

void run_cpu(const RemoveArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto removal = carve<Removal>(memory, args);
  const int64_t capacity = args.state.capacity, rows = args.state.samples.rows;
  const auto each = [&](int64_t count, const auto& step) {
    for_each_index(parallel_for, count, kRegionsPerTask, [&](int64_t i) { step(removal, i); });
  };
  std::fill_n(removal.samples.leaving, rows, 0);
  std::fill_n(removal.samples.holes, rows, 0);
  each(args.state.table_size, mark_leaving);
  for (const Compaction* const layer : {&removal.regions, &removal.samples}) {
    std::partial_sum(layer->leaving, layer->leaving + layer->rows, layer->leaving);
  }
  each(capacity + 1 + rows, list_hole);
  each(capacity + rows, [](const Removal& work, int64_t i) { vacate_region(work, i, Lanes{}); });
  each(capacity + 1, enter_region);
}

}  // namespace torchvox
