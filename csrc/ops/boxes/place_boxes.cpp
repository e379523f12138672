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
  check_type(boxes_in.scalar_type() == at::kFloat, op, "boxes must be float32",
             boxes_in.scalar_type());
  check_columns(op, boxes_in, 7, 3, "boxes must be [B, G, 7], with 7 columns or more");
  check_type(candidates_in.scalar_type() == at::kFloat, op, "candidates must be float32",
             candidates_in.scalar_type());
  const Rule candidates_rule =
      "candidates must be [B, K, T, 7] with the B of boxes, with 7 columns or more";
  check_columns(op, candidates_in, 7, 4, candidates_rule);
  check_device(op, "candidates", candidates_in, "boxes", boxes_in);
  check_size(candidates_in.sym_size(0).sym_eq(boxes_in.sym_size(0)), op, candidates_rule,
             candidates_in.sym_sizes());
  check_below(boxes_in.sym_size(1) + candidates_in.sym_size(1), kIndexLimit, op,
              "boxes and candidates must be fewer than 2^31", candidates_in.sym_sizes());
  const auto check_plane = [&](const char* name, const Tensor& tensor) {
    const Rule rule{name, " must be [B, K] with the B and K of candidates"};
    check_integers(op, name, tensor);
    check_device(op, name, tensor, "boxes", boxes_in);
    check_value(tensor.dim() == 2, op, rule, tensor.sym_sizes());
    for (int axis = 0; axis < 2; ++axis) {
      check_size(tensor.sym_size(axis).sym_eq(candidates_in.sym_size(axis)), op, rule,
                 tensor.sym_sizes());
    }
  };
  check_plane("group", group_in);
  if (replaces_in) check_plane("replaces", *replaces_in);
  check_vector(op, "lengths", lengths_in, "boxes", boxes_in, boxes_in.sym_size(0), "[B]");
  PlaceBoxesArgs args;
  args.mode =
      parse_word(op, "mode", mode, "both", "greedy") ? PlaceMode::kGreedy : PlaceMode::kBoth;
  const Tensor choice =
      empty_beside({candidates_in.sym_size(0), candidates_in.sym_size(1)}, at::kInt, boxes_in);
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
