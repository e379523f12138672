// SPDX-License-Identifier: Apache-2.0
//
// bev_max_height on the CPU: tasks of points enter the table by atomic maximum, tasks of cells
// write the outputs. Also the choice of the GPU's plan, from sizes alone.
#include <algorithm>

#include "csrc/kernels/bev/max_height.h"

namespace torchvox {
namespace {

template <class Key>
void run(const BevMaxHeightArgs& args, void* workspace, const ParallelFor& parallel_for) {
  const BevTable<Key> table(args, workspace);
  std::fill_n(static_cast<char*>(workspace), table.bytes, char{0});
  scatter_cpu(args.points, args.grid, table.counters, HeightVisit<Key>{table.keys}, parallel_for);
  for_each_index(parallel_for, cells_of(args), kBevCellsPerTask,
                 [&](int64_t cell) { write_cell(args, cell, table.keys[cell]); });
  write_counts_cpu(table.counters, args.points.clouds, args.counts);
}

}  // namespace

BevPlan plan_of(const BevMaxHeightArgs& args) {
  const int64_t cells = cells_of(args), rows = args.points.rows;
  const bool fits_small = cells <= kSmallCells;
  const int64_t forced = bev_table_plan.value();
  if (forced != kAutomatic && (fits_small || forced != static_cast<int64_t>(BevPlan::kSmall))) {
    return static_cast<BevPlan>(forced);
  }
  // Measured on an H200. Scattered points cost three cache misses each in the sparse plans.
  if (fits_small && rows <= kSmallRows) return BevPlan::kSmall;
  if (32 * rows <= cells) return BevPlan::kStarted;
  return 4 * rows <= cells && rows <= (1 << 18) ? BevPlan::kCleared : BevPlan::kDense;
}

int64_t workspace_bytes_cpu(const BevMaxHeightArgs& args) {
  return args.top_index ? BevTable<uint64_t>(args, nullptr).bytes
                        : BevTable<uint32_t>(args, nullptr).bytes;
}

void run_cpu(const BevMaxHeightArgs& args, void* workspace, const ParallelFor& parallel_for) {
  args.top_index ? run<uint64_t>(args, workspace, parallel_for)
                 : run<uint32_t>(args, workspace, parallel_for);
}

}  // namespace torchvox
