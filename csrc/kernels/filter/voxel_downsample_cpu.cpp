// SPDX-License-Identifier: Apache-2.0
//
// The last step of voxel_downsample on the CPU: tasks of rows.
#include <algorithm>

#include "csrc/kernels/filter/voxel_downsample.h"

namespace torchvox {

void run_cpu(const DownsampleRowsArgs& args, void*, const ParallelFor& parallel_for) {
  std::fill_n(args.counts, (args.clouds + 1) * kDownsampleCounts, 0);
  for_each_index(parallel_for, std::max(args.points, args.clouds) + 1, 4096,
                 [&](int64_t i) { write_downsample_row(args, i); });
}

}  // namespace torchvox
