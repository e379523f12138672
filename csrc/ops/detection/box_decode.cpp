// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/detection/box_decode.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/detection/box_coder_checks.h"
#include "csrc/ops/detection/decode_nms_checks.h"

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

Tensor box_decode(const Tensor& deltas_in, const Tensor& anchors_in,
                  const OptionalTensor& direction_in, double dir_offset, double dir_limit,
                  bool dir_flip) {
  check_value(deltas_in.dim() >= 1, kBoxOp, "deltas must be [.., 7 to 10]", deltas_in.sym_sizes());
  check_type(is_map_type(deltas_in.scalar_type()), kBoxOp,
             "deltas must be float16, bfloat16 or float32", deltas_in.scalar_type());
  const int64_t values = deltas_in.sym_size(-1).guard_int(__FILE__, __LINE__);
  check_value(is_delta_count(values), kBoxOp, "deltas must be [.., 7 to 10]",
              deltas_in.sym_sizes());
  check_leading("anchors", anchors_in, deltas_in);
  check_size(anchors_in.sym_size(-1).sym_eq(7), kBoxOp, "anchors must be [.., 7]",
             anchors_in.sym_sizes());
  check_type(anchors_in.scalar_type() == at::kFloat, kBoxOp, "anchors must be float32",
             anchors_in.scalar_type());
  BoxDecodeArgs args;
  args.coder.values = static_cast<int>(values);
  if (direction_in) {
    check_value(direction_in->dim() == deltas_in.dim(), kBoxOp,
                "direction must be [.., bins] beside deltas", direction_in->sym_sizes());
    check_leading("direction", *direction_in, deltas_in);
    check_dtype(kBoxOp, "direction", direction_in->scalar_type(), "deltas",
                deltas_in.scalar_type());
    const int64_t bins = direction_in->sym_size(-1).guard_int(__FILE__, __LINE__);
    check_value(bins >= 1 && bins <= 64, kBoxOp, "direction must have 1 to 64 bins", bins);
    args.coder.bins = static_cast<int>(bins);
  }
  set_direction(kBoxOp, dir_offset, dir_limit, dir_flip, args.coder);

  std::vector<c10::SymInt> shape = deltas_in.sym_sizes().vec();
  shape.back() = args.coder.box_values();
  const Tensor boxes = empty_beside(shape, at::kFloat, deltas_in);
  if (deltas_in.is_meta() || boxes.numel() == 0) return boxes;

  const Tensor deltas = deltas_in.contiguous(), anchors = anchors_in.contiguous();
  const OptionalTensor direction = contiguous(direction_in);
  args.deltas = deltas.const_data_ptr();
  args.direction = direction ? direction->const_data_ptr() : nullptr;
  args.dtype = dtype_of(deltas.scalar_type());
  args.anchors = anchors.const_data_ptr<float>();
  args.rows = deltas.numel() / values;
  args.anchor_rows = anchors.numel() / 7;
  args.boxes = boxes.mutable_data_ptr<float>();
  run(kBoxOp, deltas, args);
  return boxes;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("box_decode", box_decode);
  ops.autocast("box_decode", {{{"deltas", "direction"}}, {"anchors"}});
  ops.autograd(kBoxOp, inference_only());
}

}  // namespace
}  // namespace torchvox
