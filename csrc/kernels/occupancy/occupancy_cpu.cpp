// SPDX-License-Identifier: Apache-2.0
//
// The operators that edit a map, and occupancy_extract, on the CPU: regions in tasks.
#include <algorithm>
#include <numeric>

#include "csrc/kernels/occupancy/edit.h"
#include "csrc/kernels/occupancy/read.h"

namespace torchvox {

void run_cpu(const DecayArgs& args, void*, const ParallelFor& parallel_for) {
  std::fill(args.counts, args.counts + kStateCounts, 0);
  for_each_index(parallel_for, args.state.capacity + 1, kRegionsPerTask,
                 [&](int64_t slot) { decay_region(args, slot, Lanes{}); });
}

int64_t workspace_bytes_cpu(const InsertArgs& args) { return carved_bytes<Insertion>(args); }

void run_cpu(const InsertArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<Insertion>(memory, args);
  const int64_t rows = args.given.capacity;
  const int64_t* const keys = args.given.region_key;
  std::partial_sum(keys, keys + rows, work.highest, HigherKey{});
  for_each_index(parallel_for, rows + 1, 64 * kRegionsPerTask,
                 [&](int64_t row) { find_region(work, row); });
  std::partial_sum(work.number, work.number + rows, work.number);
  if (work.sampled) std::partial_sum(work.sampled, work.sampled + rows, work.sampled);
  for_each_index(parallel_for, rows + 1, kRegionsPerTask,
                 [&](int64_t row) { insert_region(work, row, Lanes{}); });
}

int64_t workspace_bytes_cpu(const RemoveArgs& args) { return carved_bytes<Removal>(args); }

void run_cpu(const RemoveArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto removal = carve<Removal>(memory, args);
  const int64_t capacity = args.state.capacity, rows = args.state.samples.rows;
  const auto each = [&](int64_t count, const auto& step) {
    for_each_index(parallel_for, count, kRegionsPerTask, [&](int64_t i) { step(removal, i); });
  };
  std::fill_n(removal.samples.leaving, rows, 0);
  std::fill_n(removal.samples.holes, rows, 0);
  each(args.state.table_size, mark_leaving);
  for (const Compaction* const layer : {&removal.regions, &removal.samples}) {
    std::partial_sum(layer->leaving, layer->leaving + layer->rows, layer->leaving);
  }
  each(capacity + 1 + rows, list_hole);
  each(capacity + rows, [](const Removal& work, int64_t i) { vacate_region(work, i, Lanes{}); });
  each(capacity + 1, enter_region);
}

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
