// SPDX-License-Identifier: Apache-2.0
//
// Gradients of neighbor distances on the CPU, element by element.
#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/kernels/grouping/segment_sum.h"

namespace torchvox {

constexpr int64_t kElementsPerTask = 4096;

int64_t workspace_bytes_cpu(const NeighborDistanceArgs&) { return 0; }

void run_cpu(const NeighborDistanceArgs& args, void*, const ParallelFor& parallel_for) {
  const InverseIndex& inverse = args.inverse;
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.grad_points) {
      for_each_index(parallel_for, inverse.clouds * inverse.rows * args.dims, kElementsPerTask,
                     [&](int64_t i) {
                       const int64_t row = i / args.dims, cloud = row / inverse.rows;
                       sum_list<DistanceGradient<T>>(args, cloud, row - cloud * inverse.rows,
                                                     i - row * args.dims);
                     });
    }
    if (args.grad_query) {
      for_each_index(parallel_for, inverse.clouds * args.queries * args.dims, kElementsPerTask,
                     [&](int64_t i) { query_gradient<T>(args, i); });
    }
  });
}

}  // namespace torchvox
