// SPDX-License-Identifier: Apache-2.0
//
// voxel_downsample on the CPU.
#include "csrc/kernels/filter/voxel_downsample.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const VoxelDownsampleArgs& args) {
  Workspace workspace;
  const DownsampleSteps steps(args, workspace);
  return workspace.bytes() + workspace_bytes_cpu(steps.group);
}

void run_cpu(const VoxelDownsampleArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const DownsampleSteps steps(args, workspace);
  std::fill_n(args.counts, args.num_counts(), 0);
  run_cpu(steps.keys, nullptr, parallel_for);
  run_cpu(steps.group, static_cast<char*>(memory) + workspace.bytes(), parallel_for);
  run_cpu(steps.mean, nullptr, parallel_for);
  for_each_index(parallel_for, args.points() + 1, 4096,
                 [&](int64_t i) { write_grouped_row(steps, i); });
}

}  // namespace torchvox
