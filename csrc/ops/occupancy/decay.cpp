// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/occupancy/decay.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/occupancy/checks.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor> occupancy_decay_(at::TensorList state, int64_t factor, int64_t step,
                                            int64_t forget, const OptionalTensor& mask_in) {
  const char* op = "occupancy_decay_";
  DecayArgs args;
  args.state = parse_state(op, state);
  check_value(factor >= 0 && factor <= 65536, op, "factor must be from 0 to 65536", factor);
  check_value(step >= 0, op, "step must be 0 or more", step);
  if (mask_in) check_mask(op, *mask_in, state);
  const Tensor empty = empty_beside({state[kRegionKey].sym_size(0)}, at::kBool, state[0]);
  const Tensor counts = empty_beside({1, int64_t{kStateCounts}}, at::kLong, state[0]);
  if (counts.is_meta()) return {empty, counts};
  const OptionalTensor mask = contiguous(mask_in);
  args.mask = mask ? mask->const_data_ptr<bool>() : nullptr;
  args.factor = factor;
  args.step = step;
  args.forget = forget;
  args.empty = empty.mutable_data_ptr<bool>();
  args.counts = counts.mutable_data_ptr<int64_t>();
  run(op, state[0], args);
  return {empty, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("occupancy_decay_", occupancy_decay_);
  ops.in_place("occupancy_decay_", mutating);
}

}  // namespace
}  // namespace torchvox
