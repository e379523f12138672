// SPDX-License-Identifier: Apache-2.0
//
// occupancy_raycast on the CPU.
#include "csrc/kernels/occupancy/raycast.h"

namespace torchvox {

void run_cpu(const OccupancyRaycastArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.rays.points.rows, 256, [&](int64_t i) { cast_ray(args, i); });
}

}  // namespace torchvox
