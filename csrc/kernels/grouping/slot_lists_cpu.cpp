// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/slot_lists.h"

#include <algorithm>

#include "csrc/kernels/grouping/slot_rows_common.h"

namespace torchvox {
namespace {

constexpr int64_t kSlotsPerTask = 16384;

// A counting sort of one cloud. The second walk goes backwards, so that lists ascend and each
// offset ends as the beginning of its list.
void list_slots(const SlotListsArgs& args, int64_t cloud) {
  int32_t* const offsets = args.offsets + cloud * (args.rows + 1);
  int32_t* const order = args.order + cloud * args.slots;
  const int64_t first = cloud * args.slots;
  std::fill_n(offsets, args.rows + 1, 0);
  for (int64_t s = 0; s < args.slots; ++s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < args.rows) ++offsets[row];
  }
  int32_t sum = 0;
  for (int64_t row = 0; row <= args.rows; ++row) offsets[row] = sum += offsets[row];
  for (int64_t s = args.slots - 1; s >= 0; --s) {
    const int64_t row = args.idx[first + s];
    if (row >= 0 && row < args.rows) order[--offsets[row]] = static_cast<int32_t>(s);
  }
}

}  // namespace

int64_t workspace_bytes(const SlotRowsArgs&, const Target&) { return 0; }

void run_cpu(const SlotRowsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.queries * args.k, kSlotsPerTask,
                 [&](int64_t i) { slot_row(args, i); });
}

int64_t workspace_bytes([[maybe_unused]] const SlotListsArgs& args,
                        [[maybe_unused]] const Target& target) {
#ifdef TORCHVOX_CUDA
  if (target.cuda) return workspace_bytes_cuda(args);
#endif
  return 0;
}

void run_cpu(const SlotListsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.clouds, 1, [&](int64_t cloud) { list_slots(args, cloud); });
}

}  // namespace torchvox
