// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/neighbour_distance_common.h"

namespace torchvox {
namespace {

constexpr int64_t kElementsPerTask = 4096;

}  // namespace

int64_t workspace_bytes(const NeighbourDistanceArgs&, const Target&) { return 0; }

void run_cpu(const NeighbourDistanceArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    if (args.grad_points) {
      for_each_index(parallel_for, args.clouds * args.rows * args.dims, kElementsPerTask,
                     [&](int64_t i) { point_gradient<T>(args, i); });
    }
    if (args.grad_query) {
      for_each_index(parallel_for, args.clouds * args.queries * args.dims, kElementsPerTask,
                     [&](int64_t i) { query_gradient<T>(args, i); });
    }
  });
}

}  // namespace torchvox
