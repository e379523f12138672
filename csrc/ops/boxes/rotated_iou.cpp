// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/rotated_iou.h"

#include "csrc/ops/boxes/box_checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

OverlapMetric parse_metric(const char* op, std::string_view metric) {
  return parse_choice<OverlapMetric>(op, "metric", metric,
                                     {{"iou", OverlapMetric::kIou},
                                      {"iof", OverlapMetric::kIof},
                                      {"overlap", OverlapMetric::kOverlap}});
}

void check_arguments(const char* op, const Tensor& a, const Tensor& b, std::string_view mode,
                     bool paired) {
  // Coordinates of 16 bits would be off by centimeters: they are refused, not widened.
  const bool batched = a.dim() == 3;
  Inputs in(op);
  in.add("a", a, Dtypes::kWideFloats, batched ? "[B, N, 7+]" : "[N, 7+]");
  in.add("b", b, Dtypes::kWideFloats,
         paired ? (batched ? "[B, N, 7+]" : "[N, 7+]") : (batched ? "[B, M, 7+]" : "[M, 7+]"));
  check_dtype(op, "b", b.scalar_type(), "a", a.scalar_type());
  check_few_rows(op, a);
  check_few_rows(op, b);
  parse_word(op, "mode", mode, "bev", "3d");
}

c10::SymDimVector shape_of_iou(const Tensor& a, const Tensor& b, bool paired) {
  c10::SymDimVector shape(a.sym_sizes());
  shape.pop_back();
  if (!paired) shape.push_back(b.sym_size(-2));
  return shape;
}

RotatedIouArgs arguments(const Tensor& a, const Tensor& b, std::string_view mode, bool paired,
                         OverlapMetric metric) {
  RotatedIouArgs args;
  args.a = box_array(a);
  args.b = box_array(b);
  args.dtype = dtype_of(a.scalar_type());
  args.batches = a.dim() == 3 ? a.size(0) : 1;
  args.is_paired = paired;
  args.is_volume = mode == "3d";
  args.metric = metric;
  return args;
}

Tensor rotated_iou(const Tensor& a_in, const Tensor& b_in, std::string_view mode, bool paired,
                   std::string_view metric_in) {
  const char* op = "rotated_iou";
  check_arguments(op, a_in, b_in, mode, paired);
  const OverlapMetric metric = parse_metric(op, metric_in);
  const Tensor out = empty_beside(shape_of_iou(a_in, b_in, paired), a_in.scalar_type(), a_in);
  if (a_in.is_meta()) return out;

  const Tensor a = readable(a_in), b = readable(b_in);
  RotatedIouArgs args = arguments(a, b, mode, paired, metric);
  args.iou = out.mutable_data_ptr();
  run(op, a, args);
  return out;
}

std::tuple<Tensor, Tensor> rotated_iou_backward(const Tensor& grad, const Tensor& a_in,
                                                const Tensor& b_in, std::string_view mode,
                                                bool paired, std::string_view metric_in, bool for_a,
                                                bool for_b) {
  const char* op = "_rotated_iou_backward";
  check_arguments(op, a_in, b_in, mode, paired);
  const OverlapMetric metric = parse_metric(op, metric_in);
  check_same(op, "grad", grad, "the output", a_in, shape_of_iou(a_in, b_in, paired),
             a_in.scalar_type());
  RotatedIouBackwardArgs args;
  const Tensor grad_a = output_gradient(args.grad_a, a_in, for_a);
  const Tensor grad_b = output_gradient(args.grad_b, b_in, for_b);
  if (grad.is_meta()) return {grad_a, grad_b};

  Memory memory;
  const Tensor a = readable(a_in), b = readable(b_in);
  args.forward = arguments(a, b, mode, paired, metric);
  args.grad = memory.of(grad);
  args.a_columns = a.size(-1);
  args.b_columns = b.size(-1);
  run(op, grad, args);
  return {grad_a, grad_b};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("rotated_iou", rotated_iou);
  ops.autocast("rotated_iou", {{{"a", "b"}}, {"a", "b"}});
  ops.differentiable("rotated_iou", {"_rotated_iou_backward"});
  ops.add("_rotated_iou_backward", rotated_iou_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
