// SPDX-License-Identifier: Apache-2.0
//
// transform_points on the CPU.
#include "csrc/kernels/rays/transform_points.h"

namespace torchvox {

void run_cpu(const TransformPointsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.points.rows, 4096,
                 [&](int64_t i) { transform_point(args, i); });
}

}  // namespace torchvox
