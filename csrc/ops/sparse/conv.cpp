// SPDX-License-Identifier: Apache-2.0
//
// sparse_schedule, sparse_conv and its gradient: of features the same products over the inverse
// table, of the weight sums over segments of rows.
#include "csrc/ops/sparse/rows.h"

namespace torchvox {
namespace {

// Tables of a layer, and their schedules.
struct Tables {
  const Tensor& neighbors;
  const OptionalTensor& inverse;
  bool submanifold;
  const OptionalTensor &schedule, &inverse_schedule, &num_valid;
};

c10::SymInt schedule_length(const c10::SymInt& volume, const c10::SymInt& rows) {
  constexpr int64_t kTile = SparseSchedule::kTile;
  return (rows + (kTile - 1)) / kTile * ((volume + 1) * kTile + SparseSchedule::kWords);
}

void add_schedule(Inputs& in, const char* name, const OptionalTensor& schedule, const char* table,
                  const c10::SymInt& rows) {
  if (!schedule) return;
  in.add(name, schedule, Dtypes::kInt32, "[*]");
  const c10::SymInt length = schedule_length(in["K"], rows);
  check_size(schedule->sym_size(0).sym_eq(length), in.op(),
             {name, " must be what sparse_schedule gives for ", table}, schedule->sym_size(0),
             " numbers instead of ", length);
}

// Checks features, weight and tables.
void add_convolution(Inputs& in, const Tensor& features, const Tensor& weight,
                     const Tables& tables) {
  const char* op = in.op();
  in.add("features", features, Dtypes::kFloats, "[C, I]");
  in.add("weight", weight, Dtypes::kFloats, "[O, Z, Y, X, I]");
  check_dtype(op, "weight", weight.scalar_type(), "features", features.scalar_type());
  const c10::SymInt volume = in["Z"] * in["Y"] * in["X"];
  check_below(volume, kMostOffsets + 1, op, "weight must have at most 125 offsets", volume);
  in.add_size("K", volume, "weight");
  in.add("neighbors", tables.neighbors, Dtypes::kInt32, "[K, R]");
  check_below(in["R"], kIndexLimit, op, "neighbors must have fewer than 2^31 rows", in["R"]);
  in.add("inverse", tables.inverse, Dtypes::kInt32, "[K, C]");
  if (tables.submanifold) {
    check_size(in["R"].sym_eq(in["C"]), op,
               "neighbors of a submanifold layer must have the rows of features", in["R"]);
  }
  add_schedule(in, "schedule", tables.schedule, "neighbors", in["R"]);
  check_value(tables.inverse || !tables.inverse_schedule, op,
              "inverse_schedule must come with inverse", "no inverse");
  add_schedule(in, "inverse_schedule", tables.inverse_schedule, "inverse", in["C"]);
  add_row_count(in, tables.num_valid, features);
}

// Null for None. What it holds is never written.
int32_t* schedule_of(Memory& memory, const OptionalTensor& schedule) {
  if (!schedule) return nullptr;
  Tensor data = schedule->contiguous();
  if (reinterpret_cast<uintptr_t>(data.const_data_ptr()) % 16) data = data.clone();
  return const_cast<int32_t*>(memory.rows(data).const_data_ptr<int32_t>());
}

Tensor sparse_schedule(const Tensor& neighbors, at::IntArrayRef kernel_size) {
  Inputs in("sparse_schedule");
  in.add("neighbors", neighbors, Dtypes::kInt32, "[K, R]");
  int64_t volume = kernel_size.size() == 3 ? 1 : 0;
  for (const int64_t size : kernel_size) {
    volume = size >= 0 && size <= kMostOffsets && volume <= kMostOffsets ? volume * size : -1;
  }
  check_size(in["K"].sym_eq(volume), in.op(),
             "kernel_size must be three whole numbers whose product is the K of neighbors",
             kernel_size, " and ", in["K"]);
  check_below(in["K"], kMostOffsets + 1, in.op(), "neighbors must have at most 125 offsets",
              in["K"]);
  check_below(in["R"], kIndexLimit, in.op(), "neighbors must have fewer than 2^31 rows", in["R"]);
  SparseScheduleArgs args;
  const Tensor out = output(args.out, {schedule_length(in["K"], in["R"])}, neighbors);
  if (neighbors.is_meta()) return out;
  Memory memory;
  args.table = table_of(memory, neighbors, {}, kIndexLimit - 1, {});
  args.kernel_size = {kernel_size[0], kernel_size[1], kernel_size[2]};
  run(in.op(), neighbors, args);
  return out;
}

// Weights whose three axes of offsets are one.
Tensor by_offset(const Tensor& weight) {
  const bool merges = weight.stride(2) == weight.stride(3) * weight.size(3) &&
      weight.stride(1) == weight.stride(2) * weight.size(2);
  return merges || weight.numel() == 0 ? weight : weight.contiguous();
}

Tensor sparse_conv(const Tensor& features, const Tensor& weight, const Tensor& neighbors,
                   const OptionalTensor& bias, const OptionalTensor& residual, bool relu,
                   const OptionalTensor& inverse, bool submanifold, const OptionalTensor& schedule,
                   const OptionalTensor& inverse_schedule, const OptionalTensor& num_valid) {
  Inputs in("sparse_conv");
  add_convolution(in, features, weight,
                  {neighbors, inverse, submanifold, schedule, inverse_schedule, num_valid});
  in.add("bias", bias, Dtypes::kFloats, "[O]");
  in.add("residual", residual, Dtypes::kFloats, "[R, O]");
  if (bias) check_dtype(in.op(), "bias", bias->scalar_type(), "features", features.scalar_type());
  if (residual) {
    check_dtype(in.op(), "residual", residual->scalar_type(), "features", features.scalar_type());
  }
  SparseConvArgs args;
  const Tensor out = output(args.out, {in["R"], in["O"]}, features.scalar_type(), features);
  if (features.is_meta()) return out;
  Memory memory;
  const Tensor weights = by_offset(weight);
  args.table = table_of(memory, neighbors, num_valid, features.size(0), {});
  args.kernel_size = {weight.size(1), weight.size(2), weight.size(3)};
  args.schedule = schedule_of(memory, schedule);
  args.features = memory.of(features);
  args.weight = {weights.const_data_ptr(), weights.stride(0), weights.stride(3), weights.stride(4)};
  args.bias = memory.of(bias);
  args.residual = memory.of(residual);
  args.relu = relu;
  args.dtype = dtype_of(features.scalar_type());
  args.in_channels = features.size(1);
  args.out_channels = weight.size(0);
  run(in.op(), features, args);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> sparse_conv_backward(
    const Tensor& grad, const Tensor& features, const Tensor& weight, const Tensor& neighbors,
    const OptionalTensor& inverse, bool submanifold, const OptionalTensor& schedule,
    const OptionalTensor& inverse_schedule, const OptionalTensor& num_valid, bool for_features,
    bool for_weight, bool for_bias) {
  Inputs in("_sparse_conv_backward");
  add_convolution(in, features, weight,
                  {neighbors, inverse, submanifold, schedule, inverse_schedule, num_valid});
  check_same(in.op(), "grad", grad, "the output", features, {in["R"], in["O"]},
             features.scalar_type());
  check_value(!for_features || inverse || submanifold, in.op(),
              "inverse must be given, or submanifold be True, for the gradient of features",
              "neither");
  SparseConvArgs to_features;
  SparseConvWeightArgs to_weight;
  const Tensor grad_features = output_gradient(to_features.out, features, for_features);
  const Tensor grad_weight = output_gradient(to_weight.grad_weight, weight, for_weight);
  const Tensor grad_bias =
      output(to_weight.grad_bias, {for_bias ? in["O"] : c10::SymInt(0)}, grad.scalar_type(), grad);
  if (!for_bias) to_weight.grad_bias = nullptr;
  if (features.is_meta()) return {grad_features, grad_weight, grad_bias};
  Memory memory;
  const Tensor grad_rows = memory.rows(grad.contiguous());
  if (for_features) {
    const Tensor weights = by_offset(weight);
    to_features.table =
        table_of(memory, submanifold ? neighbors : *inverse, {}, grad.size(0), num_valid);
    to_features.kernel_size = {weight.size(1), weight.size(2), weight.size(3)};
    to_features.schedule = schedule_of(memory, submanifold ? schedule : inverse_schedule);
    to_features.features = grad_rows.const_data_ptr();
    to_features.weight = {weights.const_data_ptr(), weights.stride(4), weights.stride(3),
                          weights.stride(0), submanifold};
    to_features.dtype = dtype_of(grad.scalar_type());
    to_features.in_channels = weight.size(0);
    to_features.out_channels = features.size(1);
    run(in.op(), grad, to_features);
  }
  if (for_weight || for_bias) {
    to_weight.table = table_of(memory, neighbors, num_valid, features.size(0), {});
    to_weight.features = memory.of(features);
    to_weight.grad = grad_rows.const_data_ptr();
    to_weight.dtype = dtype_of(grad.scalar_type());
    to_weight.in_channels = features.size(1);
    to_weight.out_channels = weight.size(0);
    run(in.op(), grad, to_weight);
  }
  return {grad_features, grad_weight, grad_bias};
}

// What only gradients require.
void check_gradient(const Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(!call.optional("residual") && !call["relu"].toBool(),
                              "sparse_conv: a call with residual or relu is for inference; add "
                              "them behind the op");
  TORCH_CHECK_NOT_IMPLEMENTED(!wants_gradient(call.tensor("features")) ||
                                  call.optional("inverse") || call["submanifold"].toBool(),
                              "sparse_conv: the gradient of features needs the table inverse, or "
                              "submanifold=True");
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("sparse_schedule", sparse_schedule, not_differentiable());
  ops.add("sparse_conv", sparse_conv);
  ops.autocast("sparse_conv", {.lower = {"features", "weight", "bias", "residual"}});
  ops.differentiable(
      "sparse_conv",
      {.backward = "_sparse_conv_backward", .constants = {"residual"}, .prepare = check_gradient});
  ops.add("_sparse_conv_backward", sparse_conv_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
