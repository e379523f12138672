// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/place_boxes.h"

#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

Tensor place_boxes(const Tensor& boxes_in, const Tensor& candidates_in, const Tensor& group_in,
                   const OptionalTensor& lengths_in, std::string_view mode,
                   const OptionalTensor& replaces_in) {
  const char* op = "place_boxes";
  Inputs in(op);
  in.add("boxes", boxes_in, Dtypes::kFloat32, "[B, G, 7+]");
  in.add("candidates", candidates_in, Dtypes::kFloat32, "[B, K, T, 7+]");
  in.add("group", group_in, Dtypes::kIndices, "[B, K]");
  in.add("replaces", replaces_in, Dtypes::kIndices, "[B, K]");
  in.add("lengths", lengths_in, Dtypes::kIndices, "[B]");
  check_few_rows(op, boxes_in);
  check_few_rows(op, candidates_in);
  check_below(in["G"] + in["K"], kIndexLimit, op, "boxes and candidates must be fewer than 2^31",
              candidates_in.sym_sizes());
  PlaceBoxesArgs args;
  args.mode =
      parse_word(op, "mode", mode, "both", "greedy") ? PlaceMode::kGreedy : PlaceMode::kBoth;
  const Tensor choice = empty_beside({in["B"], in["K"]}, at::kInt, boxes_in);
  if (boxes_in.is_meta()) return choice;

  const Tensor boxes = readable(boxes_in), candidates = candidates_in.contiguous();
  const OptionalTensor lengths = contiguous(lengths_in), group = group_in.contiguous(),
                       replaces = contiguous(replaces_in);
  args.boxes = box_array(boxes);
  args.lengths = index_array(lengths);
  args.candidates = candidates.const_data_ptr<float>();
  args.batches = candidates.size(0);
  args.count = candidates.size(1);
  args.tries = candidates.size(2);
  args.columns = candidates.size(3);
  args.group = index_array(group);
  args.replaces = index_array(replaces);
  args.choice = choice.mutable_data_ptr<int32_t>();
  run(op, boxes, args);
  return choice;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("place_boxes", place_boxes);
  ops.autocast("place_boxes", {{}, {"boxes", "candidates"}});
  ops.autograd("place_boxes", not_differentiable());
}

}  // namespace
}  // namespace torchvox
