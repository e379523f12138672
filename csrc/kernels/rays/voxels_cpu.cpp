// SPDX-License-Identifier: Apache-2.0
//
// ray_voxels on the CPU: tasks of rays.
#include "csrc/kernels/rays/voxels.h"

namespace torchvox {

constexpr int64_t kRaysPerTask = 256;

int64_t workspace_bytes_cpu(const RayVoxelsArgs&) { return 0; }

void run_cpu(const RayVoxelsArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t rays = args.rays.points.rows;
  std::fill_n(args.counts, kRayCounts, 0);
  for_each_range(parallel_for, rays, kRaysPerTask, [&](int64_t begin, int64_t end) {
    RayTally tally;
    for (int64_t i = begin; i < end; ++i) {
      RayStatus status;
      args.offsets[i + 1] = count_visits(args, i, &status);
      tally.add(status);
    }
    tally.flush(args.counts);
  });
  args.offsets[0] = 0;
  for (int64_t i = 0; i < rays; ++i) args.offsets[i + 1] += args.offsets[i];
  args.counts[0] = args.kept();
  args.counts[1] = args.offsets[rays];
  for_each_index(parallel_for, rays, kRaysPerTask, [&](int64_t i) { write_visits(args, i); });
  for_each_index(parallel_for, args.max_out - args.kept(), 4096,
                 [&](int64_t row) { write_visit(args, args.kept() + row, -1, nullptr, 0, 0); });
}

}  // namespace torchvox
