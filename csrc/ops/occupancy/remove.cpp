// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/occupancy/remove.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/occupancy/checks.h"

namespace torchvox {
namespace {

Tensor occupancy_remove_(at::TensorList state, const Tensor& mask_in) {
  const char* op = "occupancy_remove_";
  RemoveArgs args;
  args.state = parse_state(op, state);
  check_mask(op, mask_in, state);
  const Tensor counts = empty_beside({1, int64_t{kStateCounts}}, at::kLong, state[0]);
  if (counts.is_meta()) return counts;
  const Tensor mask = mask_in.contiguous();
  args.mask = mask.const_data_ptr<bool>();
  args.counts = counts.mutable_data_ptr<int64_t>();
  run(op, state[0], args);
  return counts;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("occupancy_remove_", occupancy_remove_);
  ops.in_place("occupancy_remove_", mutating);
}

}  // namespace
}  // namespace torchvox
