// SPDX-License-Identifier: Apache-2.0
//
// occupancy_extract on the CPU: tasks of regions in the order of their keys.
#include <algorithm>
#include <numeric>

#include "csrc/kernels/occupancy/extract.h"

namespace torchvox {
namespace {

struct ExtractWork {
  int64_t* slots;  // in the order of their keys
  int64_t* offsets;  // [capacity + 1]

  ExtractWork(const OccupancyExtractArgs& args, Workspace& workspace)
      : slots(workspace.take<int64_t>(args.state.capacity)),
        offsets(workspace.take<int64_t>(args.state.capacity + 1)) {}
};

}  // namespace

int64_t workspace_bytes_cpu(const OccupancyExtractArgs& args) {
  return carved_bytes<ExtractWork>(args);
}

void run_cpu(const OccupancyExtractArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<ExtractWork>(memory, args);
  const OccupancyState& state = args.state;
  const int64_t regions = state.slots_in_use();
  std::iota(work.slots, work.slots + regions, int64_t{0});
  std::sort(work.slots, work.slots + regions,
            [&](int64_t a, int64_t b) { return state.region_key[a] < state.region_key[b]; });
  work.offsets[0] = 0;
  const auto voxels = [&](int64_t region) {
    return state.logodds + work.slots[region] * kRegionVoxels;
  };
  for_each_index(parallel_for, regions, 16, [&](int64_t r) {
    const int16_t* const logodds = voxels(r);
    work.offsets[r + 1] =
        std::count_if(logodds, logodds + kRegionVoxels, [&](int16_t x) { return args.selects(x); });
  });
  std::partial_sum(work.offsets, work.offsets + regions + 1, work.offsets);
  for_each_index(parallel_for, regions, 16, [&](int64_t r) {
    int64_t row = work.offsets[r];
    for (int32_t v = 0; v < kRegionVoxels && row < args.max_out; ++v) {
      const int16_t logodds = voxels(r)[v];
      if (args.selects(logodds)) args.write(row++, work.slots[r], v, logodds);
    }
  });
  const int64_t selected = work.offsets[regions], kept = std::min(selected, args.max_out);
  for_each_index(parallel_for, args.max_out - kept, 4096,
                 [&](int64_t i) { args.write_unused(kept + i); });
  std::fill_n(args.counts, kStateCounts, 0);
  args.counts[0] = kept;
  args.counts[1] = selected;
}

}  // namespace torchvox
