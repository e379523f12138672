// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/pillars/encode/encode.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/pillars/checks.h"

namespace torchvox {
namespace {

at::ScalarType calculation(at::ScalarType points, at::ScalarType weight) {
  return points == at::kDouble || weight == at::kDouble ? at::kDouble : at::kFloat;
}

struct Encoded {
  Tensor canvas, arg, mean;
};

Encoded encode(const char* op, const PillarInputs& in, const Tensor& weight, const Tensor& bias,
               const PillarOptions& options, const c10::SymInt& batch_size,
               std::optional<at::ScalarType> out_dtype, bool train) {
  Inputs inputs(op);
  in.add_to(inputs);
  check_batch_size(op, batch_size);
  PillarEncodeArgs args;
  options.put(op, args.map);
  inputs.add("weight", weight, Dtypes::kFloats, "[O >= 1, D]");
  inputs.add("bias", bias, Dtypes::kFloats, "[O]");
  check_size(inputs["D"].sym_eq(inputs["C"] + 3 + options.center_axes), op,
             "weight must be [O, D] with D = columns + 3 + center_axes", weight.sym_sizes());
  check_dtype(op, "bias", bias.scalar_type(), "weight", weight.scalar_type());
  const at::ScalarType type = out_dtype.value_or(weight.scalar_type());
  check_type(is_coordinate_type(type), op,
             "out_dtype must be float16, bfloat16, float32 or float64", type);
  const c10::SymInt rows = in.indices.sym_size(0), outputs = weight.sym_size(0);
  Encoded out;
  out.canvas =
      empty_canvas(batch_size, outputs, args.map.rows.nx, args.map.rows.ny, type, in.points);
  if (train) {
    out.arg = output(args.arg, {rows, outputs}, in.points);
    out.mean = output(args.mean, {rows, 3},
                      calculation(in.points.scalar_type(), weight.scalar_type()), in.points);
  }
  if (in.points.is_meta()) return out;
  Memory memory;
  in.put(args.map, memory, out.canvas.size(0));
  args.weight = memory.of(weight);
  args.bias = memory.of(bias);
  args.weight_dtype = dtype_of(weight.scalar_type());
  args.outputs = weight.size(0);
  args.out_dtype = dtype_of(type);
  args.canvas = out.canvas.mutable_data_ptr();
  run(op, in.points, args);
  return out;
}

// With kTrain, what the gradient needs is returned too.
template <bool kTrain>
auto pillar_encode(const Tensor& points, const Tensor& indices, const Tensor& num_points,
                   const Tensor& point_voxel, const Tensor& point_slot, const Tensor& weight,
                   const Tensor& bias, c10::ArrayRef<double> voxel_size,
                   c10::ArrayRef<double> range, int64_t max_points, c10::SymInt batch_size,
                   int64_t center_axes, bool legacy, std::string_view pad_semantics,
                   std::optional<at::ScalarType> out_dtype) {
  const Encoded out =
      encode("pillar_encode", {points, indices, num_points, point_voxel, point_slot}, weight, bias,
             {voxel_size, range, max_points, center_axes, legacy, pad_semantics}, batch_size,
             out_dtype, kTrain);
  if constexpr (kTrain) {
    return std::make_tuple(out.canvas, out.mean, out.arg);
  } else {
    return out.canvas;
  }
}

std::tuple<Tensor, Tensor> pillar_encode_backward(const Tensor& grad, const Tensor& mean,
                                                  const Tensor& arg, const Tensor& points,
                                                  const Tensor& indices,
                                                  c10::ArrayRef<double> voxel_size,
                                                  c10::ArrayRef<double> range, at::ScalarType dtype,
                                                  int64_t center_axes, bool legacy) {
  const char* op = "_pillar_encode_backward";
  PillarEncodeBackwardArgs args;
  PillarOptions{voxel_size, range, -1, center_axes, legacy, "none"}.put(op, args.map);
  Inputs in(op);
  add_points(in, points);
  add_indices(in, indices);
  in.add_size("ny", args.map.rows.ny);
  in.add_size("nx", args.map.rows.nx);
  in.add("grad", grad, Dtypes::kFloats, "[B, O, ny, nx]");
  in.add("arg", arg, Dtypes::kInt32, "[V, O]");
  in.add("mean", mean, Dtypes::kWideFloats, "[V, 3]");
  check_type(points.scalar_type() != at::kDouble || mean.scalar_type() == at::kDouble, op,
             "mean must be float64 with float64 points", mean.scalar_type());
  check_type(is_coordinate_type(dtype), op, "dtype must be float16, bfloat16, float32 or float64",
             dtype);
  Tensor grad_weight =
      output(args.grad_weight, {in["O"], in["C"] + 3 + center_axes}, dtype, points);
  Tensor grad_bias = output(args.grad_bias, {in["O"]}, dtype, points);
  if (points.is_meta()) return {grad_weight, grad_bias};
  Memory memory;
  put_points(args.map, memory, points);
  put_rows(args.map.rows, memory, indices, grad.size(0));
  args.grad = grad.const_data_ptr();
  args.grad_dtype = dtype_of(grad.scalar_type());
  put_strides(grad, args.grad_strides);
  args.arg = memory.of<int32_t>(arg);
  args.mean = memory.of(mean);
  args.wide = mean.scalar_type() == at::kDouble;
  args.outputs = arg.size(1);
  args.weight_dtype = dtype_of(dtype);
  run(op, points, args);
  return {grad_weight, grad_bias};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("pillar_encode", pillar_encode<false>);
  ops.autocast("pillar_encode", {{{"weight", "bias"}}});
  ops.add("_pillar_encode_train", pillar_encode<true>, not_differentiable());
  // The forward remembers who won each channel of each pillar; the gradients of the layer gather
  // from there. The points have none: exact batch norm rests on their moments being constants.
  ops.differentiable("pillar_encode",
                     {.backward = "_pillar_encode_backward",
                      .train = "_pillar_encode_train",
                      .derived = {{"dtype", dtype_of_argument("weight")}},
                      .constant = "points"});
  ops.add("_pillar_encode_backward", pillar_encode_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
