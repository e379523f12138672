// SPDX-License-Identifier: Apache-2.0
//
// bev_rasterize and its gradient on the CPU: tasks of points fill the tables, tasks of cells write
// all planes, or tasks of points the gradient.
#include <algorithm>

#include "csrc/kernels/bev/rasterize.h"

namespace torchvox {

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
