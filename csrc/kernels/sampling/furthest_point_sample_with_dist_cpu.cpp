// SPDX-License-Identifier: Apache-2.0
//
// furthest_point_sample_with_dist on the CPU: one task per cloud, one pass over a row per sample.
#include <algorithm>

#include "csrc/kernels/sampling/furthest_point_sample_with_dist.h"

namespace torchvox {

int64_t workspace_bytes_cpu(const FpsWithDistArgs& args) {
  return args.distances.total_rows() * static_cast<int64_t>(sizeof(float));
}

void run_cpu(const FpsWithDistArgs& args, void* memory, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.distances.clouds, 1, [&](int64_t b) {
    const CloudRows cloud = args.distances.cloud(b);
    const TieRule tie = TieRule::make(args.distances.rows, args.tie_block);
    int32_t* const idx = args.idx + b * args.samples;
    if (cloud.points == 0) {
      std::fill_n(idx, args.samples, -1);
      return;
    }
    float* const dist = static_cast<float*>(memory) + cloud.first;
    std::fill_n(dist, cloud.points, args.init_dist);
    int64_t last = args.first_sample(cloud.points);
    for (int64_t s = 0; s < args.samples; ++s) {
      idx[s] = static_cast<int32_t>(last);
      const float* const row = args.row(b, last);
      uint64_t best = 0;
      for (uint32_t i = 0; i < cloud.points; ++i) {
        dist[i] = lower_dist(dist[i], row[i]);
        best = std::max(best, fps_key(dist[i], tie.code(i)));
      }
      last = tie.index(code_of_key(best));
    }
  });
}

}  // namespace torchvox
