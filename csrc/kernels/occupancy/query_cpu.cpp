// SPDX-License-Identifier: Apache-2.0
//
// occupancy_query and occupancy_crop on the CPU.
#include "csrc/kernels/occupancy/query.h"

namespace torchvox {

void run_cpu(const OccupancyQueryArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.points.rows, 1024, [&](int64_t i) { query_point(args, i); });
}

void run_cpu(const OccupancyCropArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.cells(), 1024, [&](int64_t i) { query_cell(args, i); });
}

}  // namespace torchvox
