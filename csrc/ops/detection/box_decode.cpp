// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/detection/box_decode.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/detection/checks.h"

namespace torchvox {
namespace {

constexpr const char* kBoxOp = "box_decode";

// Leading dimensions of `tensor` equal the last ones of deltas.
void check_leading(const char* name, const Tensor& tensor, const Tensor& deltas) {
  const Rule rule{name, " must have the leading dimensions of deltas, or the last of them"};
  check_device(kBoxOp, name, tensor, "deltas", deltas);
  check_value(tensor.dim() >= 1 && tensor.dim() <= deltas.dim(), kBoxOp, rule, tensor.sym_sizes());
  for (int64_t axis = 2; axis <= tensor.dim(); ++axis) {
    check_size(tensor.sym_size(-axis).sym_eq(deltas.sym_size(-axis)), kBoxOp, rule,
               tensor.sym_sizes());
  }
}

Tensor box_decode(const Tensor& deltas, const Tensor& anchors, const OptionalTensor& direction,
                  double dir_offset, double dir_limit, bool dir_flip) {
  check_value(deltas.dim() >= 1, kBoxOp, "deltas must be [.., 7 to 10]", deltas.sym_sizes());
  check_type(deltas.is_floating_point() && deltas.scalar_type() != at::kDouble, kBoxOp,
             "deltas must be float16, bfloat16 or float32", deltas.scalar_type());
  const int64_t values = concrete_size(deltas, -1);
  check_value(is_delta_count(values), kBoxOp, "deltas must be [.., 7 to 10]", deltas.sym_sizes());
  check_leading("anchors", anchors, deltas);
  check_size(anchors.sym_size(-1).sym_eq(7), kBoxOp, "anchors must be [.., 7]",
             anchors.sym_sizes());
  check_type(anchors.scalar_type() == at::kFloat, kBoxOp, "anchors must be float32",
             anchors.scalar_type());
  BoxDecodeArgs args;
  args.coder.values = static_cast<int>(values);
  if (direction) {
    check_value(direction->dim() == deltas.dim(), kBoxOp,
                "direction must be [.., bins] beside deltas", direction->sym_sizes());
    check_leading("direction", *direction, deltas);
    check_dtype(kBoxOp, "direction", direction->scalar_type(), "deltas", deltas.scalar_type());
    const int64_t bins = concrete_size(*direction, -1);
    check_value(bins >= 1 && bins <= 64, kBoxOp, "direction must have 1 to 64 bins", bins);
    args.coder.bins = static_cast<int>(bins);
  }
  set_direction(kBoxOp, dir_offset, dir_limit, dir_flip, args.coder);

  c10::SymDimVector shape(deltas.sym_sizes());
  shape.back() = args.coder.box_values();
  const Tensor boxes = output(args.boxes, shape, deltas);
  if (deltas.is_meta() || boxes.numel() == 0) return boxes;

  Memory memory;
  args.deltas = memory.of(deltas);
  args.direction = memory.of(direction);
  args.dtype = dtype_of(deltas.scalar_type());
  args.anchors = memory.of<float>(anchors);
  args.rows = deltas.numel() / values;
  args.anchor_rows = anchors.numel() / 7;
  run(kBoxOp, deltas, args);
  return boxes;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("box_decode", box_decode, inference_only());
  ops.autocast("box_decode", {{{"deltas", "direction"}}, {"anchors"}});
}

}  // namespace
}  // namespace torchvox
