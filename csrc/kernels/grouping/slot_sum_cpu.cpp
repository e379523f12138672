// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/slot_sum_common.h"

namespace torchvox {
namespace {

constexpr int64_t kElementsPerTask = 16384;

}  // namespace

int64_t workspace_bytes(const SlotSumArgs&, const Target&) { return 0; }

void run_cpu(const SlotSumArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    for_each_index(parallel_for, args.clouds * args.rows * args.channels, kElementsPerTask,
                   [&](int64_t i) { slot_sum<decltype(type)>(args, i); });
  });
}

}  // namespace torchvox
