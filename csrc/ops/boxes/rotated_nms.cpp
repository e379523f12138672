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
  const auto check_plane = [&](const char* name, const Tensor& tensor) {
    const Rule rule{name, " must be [B, N] with the B and N of boxes"};
    check_device(op, name, tensor, "boxes", boxes_in);
    check_value(tensor.dim() == 2, op, rule, tensor.sym_sizes());
    for (int axis = 0; axis < 2; ++axis) {
      check_size(tensor.sym_size(axis).sym_eq(boxes_in.sym_size(axis)), op, rule,
                 tensor.sym_sizes());
    }
  };
  check_type(boxes_in.scalar_type() == at::kFloat, op, "boxes must be float32",
             boxes_in.scalar_type());
  check_columns(op, boxes_in, 7, 3, "boxes must be [B, N, 7], with 7 columns or more");
  check_type(scores_in.scalar_type() == at::kFloat, op, "scores must be float32",
             scores_in.scalar_type());
  check_plane("scores", scores_in);
  if (group_in) {
    check_integers(op, "group", *group_in);
    check_plane("group", *group_in);
  }
  check_vector(op, "lengths", lengths_in, "boxes", boxes_in, boxes_in.sym_size(0), "[B]");
  check_value(threshold >= 0, op, "threshold must be >= 0", threshold);
  check_size(max_out.sym_ge(0), op, "max_out must be >= 0", max_out);
  check_below(max_out, kIndexLimit, op, "max_out must be below 2^31", max_out);
  check_value(mode == "rotated" || mode == "circle", op, "mode must be 'rotated' or 'circle'", "'",
              mode, "'");
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
  args.nms.mode = mode == "circle" ? NmsMode::kCircle : NmsMode::kRotated;
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
