// SPDX-License-Identifier: Apache-2.0
//
// occupancy_decay_ lowers the log-odds of regions; occupancy_remove_ takes regions out.
#include "csrc/kernels/occupancy/decay.h"

#include "csrc/kernels/occupancy/remove.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/occupancy/checks.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor> occupancy_decay_(at::TensorList state, int64_t factor, int64_t step,
                                            int64_t forget, const OptionalTensor& mask) {
  const char* op = "occupancy_decay_";
  DecayArgs args;
  args.state = parse_state(op, state);
  check_value(factor >= 0 && factor <= 65536, op, "factor must be from 0 to 65536", factor);
  check_value(step >= 0, op, "step must be 0 or more", step);
  check_mask(op, mask, state);
  const Tensor empty = output(args.empty, {state[kRegionKey].sym_size(0)}, state[0]);
  const Tensor counts = output(args.counts, {1, int64_t{kStateCounts}}, state[0]);
  if (counts.is_meta()) return {empty, counts};
  Memory memory;
  args.mask = memory.of<bool>(mask);
  args.factor = factor;
  args.step = step;
  args.forget = forget;
  run(op, state[0], args);
  return {empty, counts};
}

Tensor occupancy_remove_(at::TensorList state, const Tensor& mask) {
  const char* op = "occupancy_remove_";
  RemoveArgs args;
  args.state = parse_state(op, state);
  check_mask(op, mask, state);
  const Tensor counts = output(args.counts, {1, int64_t{kStateCounts}}, state[0]);
  if (counts.is_meta()) return counts;
  Memory memory;
  args.mask = memory.of<bool>(mask);
  run(op, state[0], args);
  return counts;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add_in_place("occupancy_decay_", occupancy_decay_);
  ops.add_in_place("occupancy_remove_", occupancy_remove_);
}

}  // namespace
}  // namespace torchvox
