// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbours/query_and_group_common.h"

namespace torchvox {
namespace {

constexpr int64_t kElementsPerTask = 16384;

int64_t slots_per_task(int64_t elements) {
  return elements < kElementsPerTask ? kElementsPerTask / (elements > 0 ? elements : 1) : 1;
}

}  // namespace

int64_t workspace_bytes(const QueryAndGroupArgs&, const Target&) { return 0; }
int64_t workspace_bytes(const QueryAndGroupBackwardArgs&, const Target&) { return 0; }

void run_cpu(const QueryAndGroupArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t columns = args.columns();
  with_word_of(args.grouped_dtype, [&](auto word) {
    for_each_index(parallel_for, args.clouds * args.queries * args.slots, slots_per_task(columns),
                   [&](int64_t at) {
                     const GroupSlot from = GroupSlot::of(args, at);
                     if (args.use_xyz) group_coordinates(args, from, 0, 1, at * columns);
                     group_features<decltype(word)>(args, from, 0, 1, at * columns);
                   });
  });
}

void run_cpu(const QueryAndGroupBackwardArgs& args, void*, const ParallelFor& parallel_for) {
  with_compute_type(args.dtype, [&](auto zero) {
    for_each_index(parallel_for, args.rows * args.dims, slots_per_task(args.slots), [&](int64_t i) {
      group_gradient<decltype(zero)>(args, i / args.dims, i % args.dims);
    });
  });
}

}  // namespace torchvox
