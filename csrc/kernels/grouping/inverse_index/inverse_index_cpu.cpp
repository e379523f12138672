// SPDX-License-Identifier: Apache-2.0
//
// Inverse indices on the CPU: one counting sort per cloud, clouds in parallel.
#include <algorithm>

#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {
namespace {

// The second walk goes backwards, so that segments ascend and each offset ends as the beginning of
// its segment.
void invert_cloud(const InverseIndexArgs& args, int64_t cloud) {
  const InverseIndex& inverse = args.inverse;
  int32_t* const offsets = inverse.offsets + cloud * (inverse.rows + 1);
  int32_t* const order = inverse.order + cloud * inverse.slots;
  const int64_t first = cloud * inverse.slots;
  std::fill_n(offsets, inverse.rows + 1, 0);
  for (int64_t s = 0; s < inverse.slots; ++s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < inverse.rows) ++offsets[row];
  }
  int32_t sum = 0;
  for (int64_t row = 0; row <= inverse.rows; ++row) offsets[row] = sum += offsets[row];
  for (int64_t s = inverse.slots - 1; s >= 0; --s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < inverse.rows) order[--offsets[row]] = static_cast<int32_t>(s);
  }
}

}  // namespace

int64_t InverseIndex::place(void* memory, bool cuda) {
  Workspace workspace(memory);
  offsets = workspace.take<int32_t>(clouds * (rows + 1));
  order = workspace.take<int32_t>(clouds * slots);
  if (cuda) {
    group_rows = workspace.take<int32_t>(clouds * (groups() + 1));
    long_rows.count = workspace.take<int32_t>(1);
    long_rows.tasks = workspace.take<LongRowTask>(most_tasks());
    long_rows.arrived = workspace.take<int32_t>(most_tasks());
  }
  return workspace.bytes();
}

int64_t workspace_bytes_cpu(const InverseIndexArgs&) { return 0; }

void run_cpu(const InverseIndexArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.inverse.clouds, 1,
                 [&](int64_t cloud) { invert_cloud(args, cloud); });
}

}  // namespace torchvox
