// SPDX-License-Identifier: Apache-2.0
//
// voxel_downsample on the CPU: keys, groups and means one after another, then the other outputs.
#include <algorithm>

#include "csrc/kernels/filter/voxel_downsample.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const VoxelDownsampleArgs& args) {
  Workspace workspace;
  const DownsampleSteps steps(args, workspace);
  return workspace.bytes() + workspace_bytes_cpu(steps.group);
}

void run_cpu(const VoxelDownsampleArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  DownsampleSteps steps(args, workspace);
  std::fill_n(args.counts, args.num_counts(), 0);
  run_cpu(steps.keys, nullptr, parallel_for);
  run_cpu(steps.group, static_cast<char*>(memory) + workspace.bytes(), parallel_for);
  const int64_t points = args.points(), rows = steps.group.counts[0];
  steps.mean.rows = rows;
  run_cpu(steps.mean, nullptr, parallel_for);
  // One row more than there are, for the counts; then the unused rows.
  for_each_index(parallel_for, rows + 1, 512, [&](int64_t i) { write_grouped_row(steps, i); });
  const size_t bytes = with_value_type(args.type, [](auto value) { return sizeof(value); });
  const size_t unused = static_cast<size_t>(points - rows) * steps.mean.columns * bytes;
  char* const means = static_cast<char*>(args.means);
  std::fill_n(means + rows * steps.mean.columns * bytes, unused, 0);  // there may be no means
  std::fill(args.indices + 4 * rows, args.indices + 4 * points, -1);
  std::fill(args.num_points + rows, args.num_points + points, 0);
  std::fill(args.representative + rows, args.representative + points, -1);
}

}  // namespace torchvox
