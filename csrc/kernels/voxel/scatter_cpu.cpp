// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/voxel/scatter_common.h"

namespace torchvox {
namespace {

constexpr int64_t kElementsPerTask = 8192;

}  // namespace

int64_t workspace_bytes(const VoxelScatterArgs&, const Target&) { return 0; }
int64_t workspace_bytes(const VoxelScatterBackwardArgs&, const Target&) { return 0; }

void run_cpu(const VoxelScatterArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    for_each_index(parallel_for, args.rows * args.channels, kElementsPerTask,
                   [&](int64_t i) { scatter_element<decltype(type)>(args, i); });
  });
}

void run_cpu(const VoxelScatterBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    for_each_index(parallel_for, args.points * args.channels, kElementsPerTask,
                   [&](int64_t i) { scatter_gradient<decltype(type)>(args, i); });
  });
}

}  // namespace torchvox
