// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/nms/nms.h"

#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor> rotated_nms(const Tensor& boxes_in, const Tensor& scores,
                                       double threshold, c10::SymInt max_out,
                                       const OptionalTensor& group, const OptionalTensor& lengths,
                                       std::string_view mode) {
  const char* op = "rotated_nms";
  Inputs in(op);
  in.add("boxes", boxes_in, Dtypes::kFloat32, "[B, N, 7+]");
  in.add("scores", scores, Dtypes::kFloat32, "[B, N]");
  in.add("group", group, Dtypes::kIndices, "[B, N]");
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  check_few_rows(op, boxes_in);
  check_value(threshold >= 0, op, "threshold must be >= 0", threshold);
  check_count(op, "max_out", max_out);
  const bool circle = parse_word(op, "mode", mode, "rotated", "circle");
  RotatedNmsArgs args;
  const Tensor index = output(args.nms.kept, {in["B"], max_out}, boxes_in);
  const Tensor count = output(args.nms.kept_counts, {in["B"]}, boxes_in);
  if (boxes_in.is_meta()) return {index, count};

  Memory memory;
  const Tensor boxes = readable(boxes_in);
  args.nms.boxes = boxes.const_data_ptr<float>();
  args.nms.segments = boxes.size(0);
  args.nms.capacity = boxes.size(1);
  args.nms.box_stride = boxes.stride(1);
  args.nms.segment_stride = boxes.stride(0);
  args.nms.group = memory.indices(group);
  args.nms.mode = circle ? NmsMode::kCircle : NmsMode::kRotated;
  args.nms.thresholds[0] = static_cast<float>(threshold);
  args.nms.most = index.size(1);
  args.scores = memory.of<float>(scores);
  args.lengths = memory.indices(lengths);
  run(op, boxes, args);
  return {index, count};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("rotated_nms", rotated_nms, not_differentiable());
  ops.autocast("rotated_nms", {{}, {"boxes", "scores"}});
}

}  // namespace
}  // namespace torchvox
