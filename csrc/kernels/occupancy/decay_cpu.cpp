// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "csrc/kernels/occupancy/decay.h"

namespace torchvox {

void run_cpu(const DecayArgs& args, void*, const ParallelFor& parallel_for) {
  std::fill(args.counts, args.counts + kStateCounts, 0);
  for_each_row<decay_region>(parallel_for, args, args.state.capacity + 1, kRegionsPerTask);
}

}  // namespace torchvox
