// SPDX-License-Identifier: Apache-2.0
//
// occupancy_insert_ on the CPU: regions in tasks.
#include <numeric>

#include "csrc/kernels/occupancy/insert.h"

namespace torchvox {

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

}  // namespace torchvox
