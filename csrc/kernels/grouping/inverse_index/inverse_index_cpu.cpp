// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "csrc/kernels/core/workspace.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {
namespace {

constexpr int64_t kSlotsPerTask = 16384;

// A counting sort of one cloud. The second walk goes backwards, so that lists ascend and each
// offset ends as the beginning of its list.
void list_slots(const SlotListsArgs& args, int64_t cloud) {
  const SlotLists& lists = args.lists;
  int32_t* const offsets = lists.offsets + cloud * (lists.rows + 1);
  int32_t* const order = lists.order + cloud * lists.slots;
  const int64_t first = cloud * lists.slots;
  std::fill_n(offsets, lists.rows + 1, 0);
  for (int64_t s = 0; s < lists.slots; ++s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < lists.rows) ++offsets[row];
  }
  int32_t sum = 0;
  for (int64_t row = 0; row <= lists.rows; ++row) offsets[row] = sum += offsets[row];
  for (int64_t s = lists.slots - 1; s >= 0; --s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < lists.rows) order[--offsets[row]] = static_cast<int32_t>(s);
  }
}

}  // namespace

int64_t SlotLists::place(void* memory, bool cuda) {
  Workspace workspace(memory);
  offsets = workspace.take<int32_t>(clouds * (rows + 1));
  order = workspace.take<int32_t>(clouds * slots);
  if (cuda) {
    group_rows = workspace.take<int32_t>(clouds * (groups() + 1));
    long_rows.count = workspace.take<int32_t>(1);
    long_rows.tasks = workspace.take<SlotTask>(most_tasks());
    long_rows.arrived = workspace.take<int32_t>(most_tasks());
  }
  return workspace.bytes();
}

void run_cpu(const SlotRowsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.queries * args.k, kSlotsPerTask,
                 [&](int64_t i) { slot_row(args, i); });
}

int64_t workspace_bytes_cpu(const SlotListsArgs&) { return 0; }

void run_cpu(const SlotListsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.lists.clouds, 1,
                 [&](int64_t cloud) { list_slots(args, cloud); });
}

}  // namespace torchvox
