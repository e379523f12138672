// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/nms/nms.h"

#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor> rotated_nms(const Tensor& boxes_in, const Tensor& scores_in,
                                       double threshold, c10::SymInt max_out,
                                       const OptionalTensor& group_in,
                                       const OptionalTensor& lengths_in, std::string_view mode) {
  const char* op = "rotated_nms";
  Inputs in(op);
  in.add("boxes", boxes_in, Dtypes::kFloat32, "[B, N, 7+]");
  in.add("scores", scores_in, Dtypes::kFloat32, "[B, N]");
  in.add("group", group_in, Dtypes::kIndices, "[B, N]");
  in.add("lengths", lengths_in, Dtypes::kIndices, "[B]");
  check_few_rows(op, boxes_in);
  check_value(threshold >= 0, op, "threshold must be >= 0", threshold);
  check_count(op, "max_out", max_out);
  const bool circle = parse_word(op, "mode", mode, "rotated", "circle");
  const c10::SymInt batches = boxes_in.sym_size(0);
  const Tensor index = empty_beside({batches, max_out}, at::kInt, boxes_in);
  const Tensor count = empty_beside({batches}, at::kInt, boxes_in);
  if (boxes_in.is_meta()) return {index, count};

  const Tensor boxes = readable(boxes_in), scores = scores_in.contiguous();
  const OptionalTensor group = contiguous(group_in), lengths = contiguous(lengths_in);
  RotatedNmsArgs args;
  args.nms.boxes = boxes.const_data_ptr<float>();
  args.nms.segments = boxes.size(0);
  args.nms.capacity = boxes.size(1);
  args.nms.box_stride = boxes.stride(1);
  args.nms.segment_stride = boxes.stride(0);
  args.nms.group = index_array(group);
  args.nms.mode = circle ? NmsMode::kCircle : NmsMode::kRotated;
  args.nms.thresholds[0] = static_cast<float>(threshold);
  args.nms.most = index.size(1);
  args.nms.kept = index.mutable_data_ptr<int32_t>();
  args.nms.kept_counts = count.mutable_data_ptr<int32_t>();
  args.scores = scores.const_data_ptr<float>();
  args.lengths = index_array(lengths);
  run(op, boxes, args);
  return {index, count};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("rotated_nms", rotated_nms);
  ops.autocast("rotated_nms", {{}, {"boxes", "scores"}});
  ops.autograd("rotated_nms", not_differentiable());
}

}  // namespace
}  // namespace torchvox
