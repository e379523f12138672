// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/pillars/encode/encode.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/pillars/checks.h"

namespace torchvox {
namespace {

// _pillar_encode_train returns what pillar_encode does, mean and arg.

void check_layer(const char* op, const Tensor& weight, const Tensor& bias, const Tensor& points,
                 int64_t center_axes) {
  const char* shape = "weight must be [O, D] with O >= 1 and D = columns + 3 + center_axes";
  check_type(is_coordinate_type(weight.scalar_type()), op,
             "weight must be float16, bfloat16, float32 or float64", weight.scalar_type());
  check_device(op, "weight", weight, points);
  check_value(weight.dim() == 2, op, shape, weight.sym_sizes());
  check_size(weight.sym_size(0).sym_ge(1), op, shape, weight.sym_sizes());
  check_size(weight.sym_size(1).sym_eq(points.sym_size(1) + 3 + center_axes), op, shape,
             weight.sym_sizes());
  check_dtype(op, "bias", bias.scalar_type(), "weight", weight.scalar_type());
  check_device(op, "bias", bias, points);
  check_value(bias.dim() == 1, op, "bias must be [O] with the O of weight", bias.sym_sizes());
  check_size(bias.sym_size(0).sym_eq(weight.sym_size(0)), op,
             "bias must be [O] with the O of weight", bias.sym_sizes());
}

at::ScalarType calculation(at::ScalarType points, at::ScalarType weight) {
  return points == at::kDouble || weight == at::kDouble ? at::kDouble : at::kFloat;
}

struct Encoded {
  Tensor canvas;
  Tensor arg;
  Tensor mean;
};

Encoded encode(const char* op, const PillarInputs& in, const Tensor& weight_in,
               const Tensor& bias_in, const PillarOptions& options, const c10::SymInt& batch_size,
               std::optional<at::ScalarType> out_dtype, bool train) {
  in.check(op);
  check_batch_size(op, batch_size);
  PillarEncodeArgs args;
  options.put(op, args.map);
  check_layer(op, weight_in, bias_in, in.points, options.center_axes);
  const at::ScalarType type = out_dtype.value_or(weight_in.scalar_type());
  check_type(is_coordinate_type(type), op,
             "out_dtype must be float16, bfloat16, float32 or float64", type);
  const c10::SymInt rows = in.indices.sym_size(0), outputs = weight_in.sym_size(0);
  Encoded out;
  out.canvas =
      empty_canvas(batch_size, outputs, args.map.rows.nx, args.map.rows.ny, type, in.points);
  if (train) {
    out.arg = empty_beside({rows, outputs}, at::kInt, in.points);
    out.mean = empty_beside(
        {rows, 3}, calculation(in.points.scalar_type(), weight_in.scalar_type()), in.points);
  }
  if (in.points.is_meta()) return out;

  const PillarTensors tensors(in);
  const Tensor weight = weight_in.contiguous(), bias = bias_in.contiguous();
  tensors.put(args.map, out.canvas.size(0));
  args.weight = weight.const_data_ptr();
  args.bias = bias.const_data_ptr();
  args.weight_dtype = dtype_of(weight.scalar_type());
  args.outputs = weight.size(0);
  args.out_dtype = dtype_of(type);
  args.canvas = out.canvas.mutable_data_ptr();
  if (train) {
    args.arg = out.arg.mutable_data_ptr<int32_t>();
    args.mean = out.mean.mutable_data_ptr();
  }
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

void check_saved(const char* op, const Tensor& grad, const Tensor& mean, const Tensor& arg,
                 const Tensor& points, const Tensor& indices) {
  check_int32(op, "arg", arg, points);
  check_value(arg.dim() == 2, op, "arg must be [V, O]", arg.sym_sizes());
  check_size(arg.sym_size(0).sym_eq(indices.sym_size(0)), op,
             "arg must be [V, O] with the V of indices", arg.sym_sizes());
  check_size(arg.sym_size(1).sym_eq(grad.sym_size(1)), op, "arg must be [V, O] with the O of grad",
             arg.sym_sizes());
  check_type(mean.scalar_type() == at::kFloat || mean.scalar_type() == at::kDouble, op,
             "mean must be float32 or float64", mean.scalar_type());
  check_device(op, "mean", mean, points);
  check_value(mean.dim() == 2, op, "mean must be [V, 3]", mean.sym_sizes());
  check_size(mean.sym_size(0).sym_eq(indices.sym_size(0)), op, "mean must be [V, 3]",
             mean.sym_sizes());
  check_size(mean.sym_size(1).sym_eq(3), op, "mean must be [V, 3]", mean.sym_sizes());
  check_type(points.scalar_type() != at::kDouble || mean.scalar_type() == at::kDouble, op,
             "mean must be float64 with float64 points", mean.scalar_type());
}

std::tuple<Tensor, Tensor> pillar_encode_backward(const Tensor& grad, const Tensor& mean_in,
                                                  const Tensor& arg_in, const Tensor& points,
                                                  const Tensor& indices,
                                                  c10::ArrayRef<double> voxel_size,
                                                  c10::ArrayRef<double> range, at::ScalarType dtype,
                                                  int64_t center_axes, bool legacy) {
  const char* op = "_pillar_encode_backward";
  PillarEncodeBackwardArgs args;
  PillarOptions{voxel_size, range, -1, center_axes, legacy, "none"}.put(op, args.map);
  check_packed_points(op, points);
  check_indices(op, indices, points);
  check_device(op, "grad", grad, points);
  check_type(is_coordinate_type(grad.scalar_type()), op,
             "grad must be float16, bfloat16, float32 or float64", grad.scalar_type());
  check_value(grad.dim() == 4, op, "grad must be [B, O, ny, nx]", grad.sym_sizes());
  check_size(grad.sym_size(2).sym_eq(args.map.rows.ny), op, "grad must be [B, O, ny, nx]",
             grad.sym_sizes());
  check_size(grad.sym_size(3).sym_eq(args.map.rows.nx), op, "grad must be [B, O, ny, nx]",
             grad.sym_sizes());
  check_saved(op, grad, mean_in, arg_in, points, indices);
  check_type(is_coordinate_type(dtype), op, "dtype must be float16, bfloat16, float32 or float64",
             dtype);
  const c10::SymInt outputs = grad.sym_size(1);
  Tensor grad_weight = empty_beside({outputs, points.sym_size(1) + 3 + center_axes}, dtype, points);
  Tensor grad_bias = empty_beside({outputs}, dtype, points);
  if (points.is_meta()) return {grad_weight, grad_bias};

  const PillarTensors tensors(points, indices);
  const Tensor arg = arg_in.contiguous(), mean = mean_in.contiguous();
  tensors.put(args.map, grad.size(0));
  args.grad = grad.const_data_ptr();
  args.grad_dtype = dtype_of(grad.scalar_type());
  put_strides(grad, args.grad_strides);
  args.arg = arg.const_data_ptr<int32_t>();
  args.mean = mean.const_data_ptr();
  args.wide = mean.scalar_type() == at::kDouble;
  args.outputs = arg.size(1);
  args.weight_dtype = dtype_of(dtype);
  args.grad_weight = grad_weight.mutable_data_ptr();
  args.grad_bias = grad_bias.mutable_data_ptr();
  run(op, points, args);
  return {grad_weight, grad_bias};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("pillar_encode", pillar_encode<false>);
  ops.autocast("pillar_encode", {{{"weight", "bias"}}});
  ops.add("_pillar_encode_train", pillar_encode<true>);
  ops.autograd("_pillar_encode_train", not_differentiable());
  // The forward remembers who won each channel of each pillar; the gradients of the layer gather
  // from there. The points have none: exact batch norm rests on their moments being constants.
  ops.differentiable("pillar_encode",
                     {.backward = "_pillar_encode_backward",
                      .train = "_pillar_encode_train",
                      .derived = {{"dtype", dtype_of_argument("weight")}},
                      .constant = "points"});
  ops.add("_pillar_encode_backward", pillar_encode_backward);
  ops.autograd("_pillar_encode_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
