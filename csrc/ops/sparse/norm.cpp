// SPDX-License-Identifier: Apache-2.0
//
// sparse_batch_norm, sparse_max_pool and their gradients.
#include "csrc/kernels/sparse/norm.h"

#include "csrc/kernels/sparse/pool.h"
#include "csrc/ops/sparse/rows.h"

namespace torchvox {
namespace {

// Checks features, eps and num_valid; returns what the values per channel must be.
Dtypes add_norm(Inputs& in, const Tensor& features, double eps, const OptionalTensor& num_valid) {
  in.add("features", features, Dtypes::kFloats, "[C, N]");
  add_row_count(in, num_valid, features);
  check_value(std::isfinite(eps) && eps > 0, in.op(), "eps must be finite and above 0", eps);
  return features.scalar_type() == at::kDouble ? Dtypes::kFloat64 : Dtypes::kFloat32;
}

void put(SparseNormArgs& args, Memory& memory, const Tensor& features, const Tensor& weight,
         double eps, const OptionalTensor& mean, const OptionalTensor& var,
         const OptionalTensor& num_valid) {
  args.features = memory.of(features);
  args.dtype = dtype_of(features.scalar_type());
  args.rows = features.size(0);
  args.channels = features.size(1);
  args.num_valid = row_count(num_valid);
  args.weight = memory.of(weight);
  args.mean = memory.of(mean);
  args.var = memory.of(var);
  args.eps = eps;
}

std::tuple<Tensor, Tensor, Tensor> sparse_batch_norm(const Tensor& features, const Tensor& weight,
                                                     const Tensor& bias, double eps,
                                                     const OptionalTensor& mean,
                                                     const OptionalTensor& var,
                                                     const OptionalTensor& num_valid) {
  Inputs in("sparse_batch_norm");
  const Dtypes sums = add_norm(in, features, eps, num_valid);
  in.add("weight", weight, sums, "[N]");
  in.add("bias", bias, sums, "[N]");
  in.add("mean", mean, sums, "[N]");
  in.add("var", var, sums, "[N]");
  check_value(mean.has_value() == var.has_value(), in.op(), "mean and var must be given together",
              mean ? "mean" : "var");
  SparseNormArgs args;
  const Tensor out = output_as(args.out, features);
  const Tensor batch_mean = output_as(args.first, weight), batch_var = output_as(args.second, bias);
  if (features.is_meta()) return {out, batch_mean, batch_var};
  Memory memory;
  put(args, memory, features, weight, eps, mean, var, num_valid);
  args.bias = memory.of(bias);
  if (args.channels > 0) run(in.op(), features, args);
  return {out, batch_mean, batch_var};
}

std::tuple<Tensor, Tensor, Tensor> sparse_batch_norm_backward(
    const Tensor& grad, const Tensor& features, const Tensor& weight, double eps,
    const Tensor& batch_mean, const Tensor& batch_var, bool training,
    const OptionalTensor& num_valid) {
  Inputs in("_sparse_batch_norm_backward");
  const Dtypes sums = add_norm(in, features, eps, num_valid);
  in.add("weight", weight, sums, "[N]");
  in.add("batch_mean", batch_mean, sums, "[N]");
  in.add("batch_var", batch_var, sums, "[N]");
  check_same(in.op(), "grad", grad, "features", features, features.sym_sizes(),
             features.scalar_type());
  SparseNormArgs args;
  const Tensor grad_features = output_as(args.out, features);
  const Tensor grad_weight = output_as(args.first, weight);
  const Tensor grad_bias = output_as(args.second, weight);
  if (features.is_meta()) return {grad_features, grad_weight, grad_bias};
  Memory memory;
  put(args, memory, features, weight, eps, batch_mean, batch_var, num_valid);
  args.gradient = true;
  args.grad = memory.of(grad);
  args.training = training;
  if (args.channels > 0) run(in.op(), features, args);
  return {grad_features, grad_weight, grad_bias};
}

std::tuple<Tensor, Tensor> sparse_max_pool(const Tensor& features, const Tensor& neighbors,
                                           const OptionalTensor& inverse,
                                           const OptionalTensor& num_valid) {
  Inputs in("sparse_max_pool");
  in.add("features", features, Dtypes::kFloats, "[C, N]");
  in.add("neighbors", neighbors, Dtypes::kInt32, "[K, R]");
  in.add("inverse", inverse, Dtypes::kInt32, "[K, C]");
  add_row_count(in, num_valid, features);
  SparsePoolArgs args;
  const Tensor out = output(args.out, {in["R"], in["N"]}, features.scalar_type(), features);
  const Tensor arg = output(args.arg, {in["R"], in["N"]}, features);
  if (features.is_meta()) return {out, arg};
  Memory memory;
  args.table = table_of(memory, neighbors, num_valid, features.size(0), {});
  args.features = memory.of(features);
  args.dtype = dtype_of(features.scalar_type());
  args.channels = features.size(1);
  run(in.op(), features, args);
  return {out, arg};
}

Tensor sparse_max_pool_backward(const Tensor& grad, const Tensor& arg, const Tensor& inverse) {
  Inputs in("_sparse_max_pool_backward");
  in.add("grad", grad, Dtypes::kFloats, "[R, N]");
  in.add("arg", arg, Dtypes::kInt32, "[R, N]");
  in.add("inverse", inverse, Dtypes::kInt32, "[K, C]");
  SparsePoolBackwardArgs args;
  const Tensor out = output(args.out, {in["C"], in["N"]}, grad.scalar_type(), grad);
  if (grad.is_meta()) return out;
  Memory memory;
  args.table = table_of(memory, inverse, {}, grad.size(0), {});
  args.grad = memory.of(grad);
  args.arg = memory.of<int32_t>(arg);
  args.dtype = dtype_of(grad.scalar_type());
  args.channels = grad.size(1);
  run(in.op(), grad, args);
  return out;
}

void check_pool_gradient(const Call& call) {
  TORCH_CHECK_NOT_IMPLEMENTED(call.optional("inverse"),
                              "sparse_max_pool: the gradient of features needs the table inverse");
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("sparse_batch_norm", sparse_batch_norm);
  ops.autocast("sparse_batch_norm", {{}, {"weight", "bias", "mean", "var"}});
  ops.differentiable(
      "sparse_batch_norm",
      {.backward = "_sparse_batch_norm_backward",
       .derived = {{"training", [](const Call& call) { return !call.optional("mean"); }}},
       .constants = {"mean", "var"}});
  ops.add("_sparse_batch_norm_backward", sparse_batch_norm_backward, no_second_derivative());
  ops.add("sparse_max_pool", sparse_max_pool);
  ops.differentiable("sparse_max_pool",
                     {.backward = "_sparse_max_pool_backward", .prepare = check_pool_gradient});
  ops.add("_sparse_max_pool_backward", sparse_max_pool_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
