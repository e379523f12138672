// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/place_boxes.h"

#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

Tensor place_boxes(const Tensor& boxes_in, const Tensor& candidates, const Tensor& group,
                   const OptionalTensor& lengths, std::string_view mode,
                   const OptionalTensor& replaces) {
  const char* op = "place_boxes";
  Inputs in(op);
  in.add("boxes", boxes_in, Dtypes::kFloat32, "[B, G, 7+]");
  in.add("candidates", candidates, Dtypes::kFloat32, "[B, K, T, 7+]");
  in.add("group", group, Dtypes::kIndices, "[B, K]");
  in.add("replaces", replaces, Dtypes::kIndices, "[B, K]");
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  check_few_rows(op, boxes_in);
  check_few_rows(op, candidates);
  check_below(in["G"] + in["K"], kIndexLimit, op, "boxes and candidates must be fewer than 2^31",
              candidates.sym_sizes());
  PlaceBoxesArgs args;
  args.mode =
      parse_word(op, "mode", mode, "both", "greedy") ? PlaceMode::kGreedy : PlaceMode::kBoth;
  const Tensor choice = output(args.choice, {in["B"], in["K"]}, boxes_in);
  if (boxes_in.is_meta()) return choice;

  Memory memory;
  const Tensor boxes = readable(boxes_in);
  args.boxes = box_array(boxes);
  args.lengths = memory.indices(lengths);
  args.candidates = memory.of<float>(candidates);
  args.batches = candidates.size(0);
  args.count = candidates.size(1);
  args.tries = candidates.size(2);
  args.columns = candidates.size(3);
  args.group = memory.indices(group);
  args.replaces = memory.indices(replaces);
  run(op, boxes, args);
  return choice;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("place_boxes", place_boxes, not_differentiable());
  ops.autocast("place_boxes", {{}, {"boxes", "candidates"}});
}

}  // namespace
}  // namespace torchvox
