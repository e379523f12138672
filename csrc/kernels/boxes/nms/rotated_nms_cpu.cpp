// SPDX-License-Identifier: Apache-2.0
//
// rotated_nms on the CPU: one comparison argsort a segment, then NMS in that order.
#include <algorithm>

#include "csrc/kernels/boxes/nms/rotated_nms.h"

namespace torchvox {
namespace {

void sort_segment(const RotatedNmsArgs& args, const ScoreArgsort& out, int64_t segment) {
  int32_t* const order = out.order + segment * args.nms.capacity;
  int32_t count = 0;
  for (int64_t i = 0; i < args.nms.capacity; ++i) {
    if (score_key(args, segment, i) != kLeftOut) order[count++] = static_cast<int32_t>(i);
  }
  std::sort(order, order + count, [&](int32_t a, int32_t b) {
    const uint32_t key_a = score_key(args, segment, a), key_b = score_key(args, segment, b);
    return key_a < key_b || (key_a == key_b && a < b);
  });
  out.counts[segment] = count;
}

}  // namespace

int64_t workspace_bytes_cpu(const RotatedNmsArgs& args) {
  Workspace workspace;
  const ScoreArgsort order(args, workspace);
  return workspace.bytes();
}

void run_cpu(const RotatedNmsArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const ScoreArgsort order(args, workspace);
  for_each_index(parallel_for, args.nms.segments, 1,
                 [&](int64_t s) { sort_segment(args, order, s); });
  run_cpu(order.applied_to(args.nms), nullptr, parallel_for);
}

}  // namespace torchvox
