// SPDX-License-Identifier: Apache-2.0
//
// pillar_scatter, pillar_encode, pillar_moments, and the batch norm that is computed from them.
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros_like.h>

#include <limits>

#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/map.h"
#include "csrc/kernels/pillars/moments.h"
#include "csrc/kernels/pillars/norm.h"
#include "csrc/kernels/pillars/scatter.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/voxel/args.h"

namespace torchvox {
namespace {

// [V, 4] int32: b, z, y, x.
void add_indices(Inputs& in, const Tensor& indices) {
  in.add("indices", indices, Dtypes::kInt32, "[V, 4]");
  check_below(in["V"], kIndexLimit, in.op(), "indices must have V < 2^31 rows", in["V"]);
}

void check_batch_size(const char* op, const c10::SymInt& batch_size) {
  check_size(batch_size.sym_ge(0), op, "batch_size must be 0 or more", batch_size);
  check_below(batch_size, kIndexLimit, op, "batch_size must be below 2^31", batch_size);
}

// The grid of pillars: one cell along z.
VoxelGrid parse_pillar_grid(const char* op, c10::ArrayRef<double> voxel_size,
                            c10::ArrayRef<double> range) {
  const VoxelGrid grid = parse_voxel_grid(op, voxel_size, range);
  check_value(grid.cells[2] == 1, op, "voxel_size and point_cloud_range must give one cell along z",
              grid.cells[2]);
  return grid;
}

void put_rows(PillarRows& rows, Memory& memory, const Tensor& indices, int64_t batches) {
  rows.indices = memory.of<int32_t>(indices);
  rows.rows = indices.size(0);
  rows.batches = batches;
}

void put_points(PillarMap& map, Memory& memory, const Tensor& points_in) {
  const Tensor points = memory.rows(points_in);
  map.points = points.const_data_ptr();
  map.dtype = dtype_of(points.scalar_type());
  map.count = points.size(0);
  map.columns = points.size(1);
  map.row_stride = points.stride(0);
}

// Points and the map of their pillars, as an op gets them.
struct PillarInputs {
  const Tensor& points;
  const Tensor& indices;
  const Tensor& num_points;
  const Tensor& point_voxel;
  const Tensor& point_slot;

  void add_to(Inputs& in) const {
    add_points(in, points);
    add_indices(in, indices);
    in.add("num_points", num_points, Dtypes::kInt32, "[V]");
    in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
    in.add("point_slot", point_slot, Dtypes::kInt32, "[N]");
  }
  void put(PillarMap& map, Memory& memory, int64_t batches) const {
    put_points(map, memory, points);
    put_rows(map.rows, memory, indices, batches);
    map.num_points = memory.of<int32_t>(num_points);
    map.point_voxel = memory.of<int32_t>(point_voxel);
    map.point_slot = memory.of<int32_t>(point_slot);
  }
};

// What the decoration of points depends on.
struct PillarOptions {
  c10::ArrayRef<double> voxel_size;
  c10::ArrayRef<double> range;
  int64_t max_points = -1;
  int64_t center_axes = 3;
  bool legacy = false;
  std::string_view pad_semantics = "reference";

  void put(const char* op, PillarMap& map) const {
    map.grid = parse_pillar_grid(op, voxel_size, range);
    check_value(max_points >= -1, op, "max_points must be -1 (no limit) or more", max_points);
    check_value(center_axes == 2 || center_axes == 3, op, "center_axes must be 2 or 3",
                center_axes);
    map.max_points = max_points;
    map.center_axes = static_cast<int>(center_axes);
    map.legacy = legacy;
    map.padded = !parse_word(op, "pad_semantics", pad_semantics, "reference", "none");
    map.rows.nx = map.grid.cells[0];
    map.rows.ny = map.grid.cells[1];
  }
};

// [B, channels, ny, nx] in the memory format that convolutions of few channels like best: the
// channels of a cell are neighbors.
Tensor empty_canvas(const c10::SymInt& batches, const c10::SymInt& channels, int64_t nx, int64_t ny,
                    at::ScalarType type, const Tensor& beside) {
  return at::empty_strided_symint({batches, channels, ny, nx},
                                  {channels * (nx * ny), 1, channels * nx, channels},
                                  beside.options().dtype(type).layout(at::kStrided));
}

void put_strides(const Tensor& grad, int64_t (&strides)[4]) {
  for (int64_t d = 0; d < 4; ++d) strides[d] = grad.stride(d);
}

Tensor pillar_scatter(const Tensor& feats, const Tensor& indices, c10::SymInt batch_size,
                      c10::IntArrayRef size) {
  const char* op = "pillar_scatter";
  Inputs in(op);
  add_indices(in, indices);
  in.add("feats", feats, Dtypes::kFloats, "[V, C]");
  check_batch_size(op, batch_size);
  check_value(size.size() == 2 && size[0] >= 1 && size[1] >= 1, op,
              "size must be (nx, ny), both at least 1", size);
  check_value(size[0] < kIndexLimit && size[1] < kIndexLimit, op,
              "size must be below 2^31 on each axis", size);
  Tensor canvas =
      empty_canvas(batch_size, feats.sym_size(1), size[0], size[1], feats.scalar_type(), feats);
  if (feats.is_meta() || canvas.numel() == 0) return canvas;
  PillarScatterArgs args;
  Memory memory;
  put_rows(args.rows, memory, indices, canvas.size(0));
  args.rows.nx = size[0];
  args.rows.ny = size[1];
  args.feats = memory.of(feats);
  args.dtype = dtype_of(feats.scalar_type());
  args.channels = feats.size(1);
  args.canvas = canvas.mutable_data_ptr();
  run(op, feats, args);
  return canvas;
}

Tensor pillar_scatter_backward(const Tensor& grad, const Tensor& indices) {
  const char* op = "_pillar_scatter_backward";
  Inputs in(op);
  in.add("grad", grad, Dtypes::kFloats, "[B, C, ny, nx]");
  add_indices(in, indices);
  PillarScatterBackwardArgs args;
  Tensor grad_feats = output(args.grad_feats, {in["V"], in["C"]}, grad.scalar_type(), grad);
  if (grad.is_meta() || grad_feats.numel() == 0) return grad_feats;
  Memory memory;
  put_rows(args.rows, memory, indices, grad.size(0));
  args.rows.nx = grad.size(3);
  args.rows.ny = grad.size(2);
  args.grad = grad.const_data_ptr();
  put_strides(grad, args.grad_strides);
  args.dtype = dtype_of(grad.scalar_type());
  args.channels = grad.size(1);
  run(op, grad, args);
  return grad_feats;
}

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

// Shared memory of a block holds some rows of the triangle.
constexpr int64_t kMostColumns = 24;

Tensor pillar_moments(const Tensor& points, const Tensor& indices, const Tensor& num_points,
                      const Tensor& point_voxel, const Tensor& point_slot,
                      c10::ArrayRef<double> voxel_size, c10::ArrayRef<double> range,
                      int64_t max_points, int64_t center_axes, bool legacy,
                      std::string_view pad_semantics) {
  const char* op = "pillar_moments";
  const PillarInputs in{points, indices, num_points, point_voxel, point_slot};
  Inputs inputs(op);
  in.add_to(inputs);
  check_size(points.sym_size(1).sym_le(kMostColumns), op, "points must have at most 24 columns",
             points.sym_sizes());
  PillarMomentsArgs args;
  PillarOptions{voxel_size, range, max_points, center_axes, legacy, pad_semantics}.put(op,
                                                                                       args.map);
  const c10::SymInt size = points.sym_size(1) + (4 + center_axes);
  Tensor moments = output(args.moments, {size * (size + 1) / 2}, points);
  if (points.is_meta()) return moments;
  Memory memory;
  in.put(args.map, memory, std::numeric_limits<int32_t>::max());
  run(op, points, args);
  return moments;
}

void check_norm(const char* op, Inputs& in, const Tensor& moments, const Tensor& weight,
                const Tensor& gamma, double eps) {
  in.add("weight", weight, Dtypes::kFloats, "[O, D]");
  in.add("gamma", gamma, Dtypes::kFloats, "[O]");
  check_dtype(op, "gamma", gamma.scalar_type(), "weight", weight.scalar_type());
  in.add("moments", moments, Dtypes::kFloat64, "[size]");
  const c10::SymInt width = in["D"] + 1;
  check_size(in["size"].sym_eq(width * (width + 1) / 2), op,
             "moments must be [(D + 1)(D + 2) / 2] with the D of weight", moments.sym_sizes());
  check_value(std::isfinite(eps) && eps > 0, op, "eps must be finite and above 0", eps);
}

void put(PillarNormArgs& args, Memory& memory, const Tensor& moments, const Tensor& weight,
         const Tensor& gamma, double eps) {
  args.moments = memory.of<double>(moments);
  args.weight = memory.of(weight);
  args.gamma = memory.of(gamma);
  args.dtype = dtype_of(weight.scalar_type());
  args.outputs = weight.size(0);
  args.columns = weight.size(1);
  args.eps = eps;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> pillar_norm(const Tensor& moments,
                                                       const Tensor& weight_in, const Tensor& gamma,
                                                       const Tensor& beta, double eps) {
  const char* op = "pillar_norm";
  Inputs in(op);
  check_norm(op, in, moments, weight_in, gamma, eps);
  in.add("beta", beta, Dtypes::kFloats, "[O]");
  check_dtype(op, "beta", beta.scalar_type(), "weight", weight_in.scalar_type());
  PillarNormArgs args;
  const Tensor weight = output_as(args.folded_weight, weight_in);
  const Tensor bias = output_as(args.folded_bias, beta);
  const Tensor mean = output_as(args.mean, beta), var = output_as(args.var, beta);
  if (weight_in.is_meta()) return {weight, bias, mean, var};
  Memory memory;
  put(args, memory, moments, weight_in, gamma, eps);
  args.beta = memory.of(beta);
  if (args.outputs > 0) run(op, weight_in, args);
  return {weight, bias, mean, var};
}

// A gradient that is None is 0.
std::tuple<Tensor, Tensor, Tensor> pillar_norm_backward(const OptionalTensor& grad_weight_or_none,
                                                        const OptionalTensor& grad_bias_or_none,
                                                        const Tensor& moments, const Tensor& weight,
                                                        const Tensor& gamma, double eps) {
  const char* op = "_pillar_norm_backward";
  Inputs in(op);
  check_norm(op, in, moments, weight, gamma, eps);
  const auto or_zeros = [](const OptionalTensor& grad, const Tensor& like) {
    return grad ? *grad : at::zeros_like(like);
  };
  const Tensor grad_weight = or_zeros(grad_weight_or_none, weight);
  const Tensor grad_bias = or_zeros(grad_bias_or_none, gamma);
  in.add("grad_weight", grad_weight, Dtypes::kFloats, "[O, D]");
  in.add("grad_bias", grad_bias, Dtypes::kFloats, "[O]");
  check_dtype(op, "grad_weight", grad_weight.scalar_type(), "weight", weight.scalar_type());
  check_dtype(op, "grad_bias", grad_bias.scalar_type(), "weight", weight.scalar_type());
  PillarNormBackwardArgs args;
  const Tensor to_weight = output_as(args.to_weight, weight);
  const Tensor to_gamma = output_as(args.to_gamma, gamma), to_beta = output_as(args.to_beta, gamma);
  if (weight.is_meta()) return {to_weight, to_gamma, to_beta};
  Memory memory;
  put(args.norm, memory, moments, weight, gamma, eps);
  args.grad_weight = memory.of(grad_weight);
  args.grad_bias = memory.of(grad_bias);
  if (args.norm.outputs > 0) run(op, weight, args);
  return {to_weight, to_gamma, to_beta};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("pillar_scatter", pillar_scatter);
  ops.differentiable("pillar_scatter", {"_pillar_scatter_backward"});
  ops.add("_pillar_scatter_backward", pillar_scatter_backward, no_second_derivative());
  ops.add("pillar_encode", pillar_encode<false>);
  ops.autocast("pillar_encode", {{{"weight", "bias"}}});
  ops.add("_pillar_encode_train", pillar_encode<true>, not_differentiable());
  // The forward remembers who won each channel of each pillar; the gradients of the layer gather
  // from there. The points have none: exact batch norm rests on their moments being constants.
  ops.differentiable("pillar_encode",
                     {.backward = "_pillar_encode_backward",
                      .train = "_pillar_encode_train",
                      .derived = {{"dtype", dtype_of_argument("weight")}},
                      .constants = {"points"}});
  ops.add("_pillar_encode_backward", pillar_encode_backward, no_second_derivative());
  ops.add("pillar_moments", pillar_moments, inference_only());
  ops.add("pillar_norm", pillar_norm);
  ops.autocast("pillar_norm", {{{"weight", "gamma", "beta"}}, {"moments"}, "", at::kDouble});
  ops.differentiable("pillar_norm",
                     {.backward = "_pillar_norm_backward", .constants = {"moments"}});
  ops.add("_pillar_norm_backward", pillar_norm_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
