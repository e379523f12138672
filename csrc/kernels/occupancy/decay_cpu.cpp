// SPDX-License-Identifier: Apache-2.0
//
// occupancy_decay_ on the CPU: regions in tasks.
#include <algorithm>

#include "csrc/kernels/occupancy/decay.h"

namespace torchvox {

void run_cpu(const DecayArgs& args, void*, const ParallelFor& parallel_for) {
  std::fill(args.counts, args.counts + kStateCounts, 0);
  for_each_index(parallel_for, args.state.capacity + 1, kRegionsPerTask,
                 [&](int64_t slot) { decay_region(args, slot, Lanes{}); });
}

}  // namespace torchvox
