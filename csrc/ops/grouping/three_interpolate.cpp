// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/segment_sum.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

void check_arguments(Inputs& in, const char* op, const Tensor& features, const Tensor& idx,
                     const Tensor& weight, bool channels_first) {
  in.add("features", features, Dtypes::kFloats, channels_first ? "[B, C, N]" : "[B, N, C]");
  in.add("idx", idx, Dtypes::kIndices, "[B, M, 3]");
  check_type(weight.scalar_type() == at::kFloat || weight.scalar_type() == features.scalar_type(),
             op, "weight must be float32 or of the dtype of features", weight.scalar_type());
  in.add("weight", weight, Dtypes::kFloats, "[B, M, 3]");
}

Tensor interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                   bool channels_first) {
  const char* op = "three_interpolate";
  Inputs in(op);
  check_arguments(in, op, features, idx, weight, channels_first);
  c10::SymDimVector shape(features.sym_sizes());
  shape[channels_first ? 2 : 1] = idx.sym_size(1);
  InterpolateArgs args;
  const Tensor out = output(args.out, shape, features.scalar_type(), features);
  if (features.is_meta()) return out;

  Memory memory;
  args.features = memory.of(features);
  args.dtype = dtype_of(features.scalar_type());
  args.idx = memory.indices(idx);
  args.weight = memory.of(weight);
  args.weight_dtype = dtype_of(weight.scalar_type());
  args.clouds = features.size(0);
  args.rows = features.size(channels_first ? 2 : 1);
  args.queries = idx.size(1);
  args.channels = features.size(channels_first ? 1 : 2);
  args.channels_first = channels_first;
  run(op, features, args);
  return out;
}

Tensor three_interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                         bool channels_first, const OptionalTensor& batch_offsets,
                         const OptionalTensor& query_batch_offsets, bool local_index) {
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
  if (!clouds.packed()) return interpolate(features, idx, weight, channels_first);
  const char* op = "three_interpolate";
  const Tensor rows = packed_rows(op, features, idx, channels_first, clouds);
  check_given(op, "weight", weight);
  return interpolate(features.unsqueeze(0), rows, weight.unsqueeze(0), false).squeeze(0);
}

std::tuple<Tensor, Tensor> three_interpolate_backward(const Tensor& grad_in, const Tensor& features,
                                                      const Tensor& idx_in, const Tensor& weight,
                                                      bool channels_first, bool for_features,
                                                      bool for_weight) {
  const char* op = "_three_interpolate_backward";
  Inputs in(op);
  check_arguments(in, op, features, idx_in, weight, channels_first);
  in.add("grad", grad_in, Dtypes::kFloats, channels_first ? "[B, C, M]" : "[B, M, C]");
  check_dtype(op, "grad", grad_in.scalar_type(), "features", features.scalar_type());
  if (for_features) {
    check_gradient_limit(op, features.sym_size(channels_first ? 2 : 1), idx_in.sym_size(1) * 3);
  }
  SegmentSumArgs sum;
  InterpolateWeightGradArgs args;
  const Tensor grad_features = output_gradient(sum.out, features, for_features);
  const Tensor grad_weight = output_gradient(args.grad_weight, weight, for_weight);
  if (grad_in.is_meta()) return {grad_features, grad_weight};

  Memory memory;
  const Tensor grad = grad_in.contiguous(), idx = idx_in.contiguous();
  args.clouds = features.size(0);
  args.rows = features.size(channels_first ? 2 : 1);
  args.queries = idx.size(1);
  args.channels = sum.channels = features.size(channels_first ? 1 : 2);
  args.channels_first = sum.channels_first = channels_first;
  args.dtype = sum.dtype = dtype_of(grad.scalar_type());
  args.grad = sum.grad = grad.const_data_ptr();
  if (for_features) {
    const bool is_double = grad.scalar_type() == at::kDouble;
    const Tensor wide = weight.contiguous().to(is_double ? at::kDouble : at::kFloat);
    const OwnedInverseIndex owned = build_inverse_index(op, idx, args.clouds, args.rows);
    sum.weight = wide.const_data_ptr();
    sum.inverse = owned.inverse;
    run(op, grad, sum);
  }
  if (for_weight) {
    args.features = memory.of(features);
    args.idx = index_array(idx);
    args.weight_dtype = dtype_of(weight.scalar_type());
    run(op, grad, args);
  }
  return {grad_features, grad_weight};
}

void check_interpolation_gradient(const Call& call) {
  check_gradient_of_features(call, CallLayout(call).clouds.packed(), 3);
}

// Packed rows as one padded cloud.
OptionalTensor interpolate_packed(const Call& call) {
  const CallLayout layout(call);
  if (!layout.clouds.packed()) return std::nullopt;
  const Tensor features = call.tensor("features"), weight = call.tensor("weight");
  const Tensor rows = packed_rows(call.op(), features, call.tensor("idx"),
                                  call["channels_first"].toBool(), layout.clouds);
  check_dense(call.op(), "weight", weight);
  static const auto padded = typed_op<decltype(three_interpolate)>("torchvox::three_interpolate");
  return padded
      .call(features.unsqueeze(0), rows, weight.unsqueeze(0), false, std::nullopt, std::nullopt,
            false)
      .squeeze(0);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("three_interpolate", three_interpolate);
  ops.autocast("three_interpolate", {{}, {"weight"}, "features"});
  ops.differentiable("three_interpolate",
                     {.backward = "_three_interpolate_backward",
                      .prepare = check_interpolation_gradient,
                      .compose = interpolate_packed});
  ops.add("_three_interpolate_backward", three_interpolate_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
