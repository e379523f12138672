// SPDX-License-Identifier: Apache-2.0
//
// bev_max_height and bev_rasterize on the CPU: tasks of points fill the tables by atomic maxima and
// sums, tasks of cells write the outputs, or tasks of points the gradient. Also the choice of the
// GPU's plan, from sizes alone.
#include <algorithm>

#include "csrc/kernels/bev/max_height.h"
#include "csrc/kernels/bev/rasterize.h"

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

void run_cpu(const BevRasterizeArgs& args, void* workspace, const ParallelFor& parallel_for) {
  const BevRasterTables tables(args.points, args.grid, args.planes, false, workspace);
  std::fill_n(static_cast<char*>(workspace), tables.zero_bytes, char{0});
  scatter_cpu(args.points, args.grid, tables.counters,
              RasterVisit{tables, args.grid, args.intensity, args.planes, args.height_steps},
              parallel_for);
  for_each_index(parallel_for, tables.cells, kBevCellsPerTask, [&](int64_t cell) {
    const uint64_t top = tables.top[cell];
    if (tables.mean && top) tables.mean[cell] = mean_intensity(args, cell, tables.count[cell]);
    float* const out = image_at(args, cell);
    for (int p = 0; p < args.planes.count; ++p) {
      out[p * args.grid.cells()] = plane_value(args, tables, args.planes.plane[p], cell, top);
    }
  });
  write_counts_cpu(tables.counters, args.points.clouds, args.counts);
}

void run_cpu(const BevRasterizeBackwardArgs& args, void* workspace,
             const ParallelFor& parallel_for) {
  const BevRasterTables tables(args.points, args.grid, args.planes, true, workspace);
  std::fill_n(static_cast<char*>(workspace), tables.zero_bytes, char{0});
  scatter_cpu(args.points, args.grid, tables.counters,
              RasterVisit{tables, args.grid, {}, args.planes, 1.}, parallel_for);
  with_point_type(args.points.dtype, [&](auto type) {
    for_each_index(parallel_for, args.points.rows, kBevPointsPerTask,
                   [&](int64_t row) { write_raster_gradient<decltype(type)>(args, tables, row); });
  });
}

}  // namespace torchvox
