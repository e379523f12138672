// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/segment_sum.h"
#include "csrc/ops/core/autograd.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The arguments of the op, after `first`, the features or the gradient, in the same layout.
void check_arguments(const char* op, const Tensor& features, const Tensor& idx,
                     const Tensor& weight, bool channels_first) {
  check_value(features.dim() == 3, op,
              {"features must be ",
               channels_first ? "[B, C, N]" : "[B, N, C], or [T, C] with batch_offsets"},
              features.sym_sizes());
  check_type(is_coordinate_type(features.scalar_type()), op,
             "features must be float16, bfloat16, float32 or float64", features.scalar_type());
  check_integers(op, "idx", idx);
  const char* idx_rule = "idx must be [B, M, 3], or [U, 3] with batch_offsets";
  check_value(idx.dim() == 3, op, idx_rule, idx.sym_sizes());
  check_size(idx.sym_size(2).sym_eq(3), op, idx_rule, idx.sym_sizes());
  check_size(idx.sym_size(0).sym_eq(features.sym_size(0)), op,
             "idx must be [B, M, 3] with the B of features", idx.sym_sizes());
  check_type(weight.scalar_type() == at::kFloat || weight.scalar_type() == features.scalar_type(),
             op, "weight must be float32 or of the dtype of features", weight.scalar_type());
  const char* weight_rule = "weight must be [B, M, 3], or [U, 3] with batch_offsets, as idx";
  check_value(weight.dim() == 3, op, weight_rule, weight.sym_sizes());
  for (int axis = 0; axis < 3; ++axis) {
    check_size(weight.sym_size(axis).sym_eq(idx.sym_size(axis)), op, weight_rule,
               weight.sym_sizes());
  }
}

Tensor interpolate(const Tensor& features_in, const Tensor& idx_in, const Tensor& weight_in,
                   bool channels_first) {
  const char* op = "three_interpolate";
  check_arguments(op, features_in, idx_in, weight_in, channels_first);
  check_device(op, "idx", idx_in, "features", features_in);
  check_device(op, "weight", weight_in, "features", features_in);
  c10::SymDimVector shape(features_in.sym_sizes());
  shape[channels_first ? 2 : 1] = idx_in.sym_size(1);
  const Tensor out = empty_beside(shape, features_in.scalar_type(), features_in);
  if (features_in.is_meta()) return out;

  const Tensor features = features_in.contiguous(), idx = idx_in.contiguous(),
               weight = weight_in.contiguous();
  InterpolateArgs args;
  args.features = features.const_data_ptr();
  args.dtype = dtype_of(features.scalar_type());
  args.idx = index_array(idx);
  args.weight = weight.const_data_ptr();
  args.weight_dtype = dtype_of(weight.scalar_type());
  args.out = out.mutable_data_ptr();
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

void sum_features(const char* op, const Tensor& grad, const Tensor& idx, const Tensor& weight,
                  const Tensor& out, bool channels_first) {
  const OwnedInverseIndex owned =
      build_inverse_index(op, idx, grad.size(0), out.size(channels_first ? 2 : 1));
  SegmentSumArgs args;
  args.grad = grad.const_data_ptr();
  args.dtype = dtype_of(grad.scalar_type());
  args.weight = weight.const_data_ptr();
  args.inverse = owned.inverse;
  args.channels = grad.size(channels_first ? 1 : 2);
  args.channels_first = channels_first;
  args.out = out.mutable_data_ptr();
  run(op, grad, args);
}

void sum_weights(const char* op, const Tensor& grad, const Tensor& features, const Tensor& idx,
                 const Tensor& out, bool channels_first) {
  InterpolateWeightGradArgs args;
  args.grad = grad.const_data_ptr();
  args.features = features.const_data_ptr();
  args.dtype = dtype_of(grad.scalar_type());
  args.idx = index_array(idx);
  args.grad_weight = out.mutable_data_ptr();
  args.weight_dtype = dtype_of(out.scalar_type());
  args.clouds = features.size(0);
  args.rows = features.size(channels_first ? 2 : 1);
  args.queries = idx.size(1);
  args.channels = features.size(channels_first ? 1 : 2);
  args.channels_first = channels_first;
  run(op, grad, args);
}

std::tuple<Tensor, Tensor> three_interpolate_backward(const Tensor& grad_in,
                                                      const Tensor& features_in,
                                                      const Tensor& idx_in, const Tensor& weight_in,
                                                      bool channels_first, bool for_features,
                                                      bool for_weight) {
  const char* op = "_three_interpolate_backward";
  check_arguments(op, features_in, idx_in, weight_in, channels_first);
  check_device(op, "features", features_in, "grad", grad_in);
  check_device(op, "idx", idx_in, "grad", grad_in);
  check_device(op, "weight", weight_in, "grad", grad_in);
  const char* rule = "grad must have the shape of the output";
  check_dtype(op, "grad", grad_in.scalar_type(), "features", features_in.scalar_type());
  check_value(grad_in.dim() == 3, op, rule, grad_in.sym_sizes());
  for (int axis = 0; axis < 3; ++axis) {
    const bool queries = axis == (channels_first ? 2 : 1);
    check_size(
        grad_in.sym_size(axis).sym_eq(queries ? idx_in.sym_size(1) : features_in.sym_size(axis)),
        op, rule, grad_in.sym_sizes());
  }
  if (for_features) {
    check_gradient_limit(op, features_in.sym_size(channels_first ? 2 : 1), idx_in.sym_size(1) * 3);
  }
  const auto gradient_of = [](const Tensor& tensor, bool wanted) {
    return wanted ? empty_beside(tensor.sym_sizes(), tensor.scalar_type(), tensor)
                  : empty_beside({0}, tensor.scalar_type(), tensor);
  };
  const Tensor grad_features = gradient_of(features_in, for_features);
  const Tensor grad_weight = gradient_of(weight_in, for_weight);
  if (grad_in.is_meta()) return {grad_features, grad_weight};

  const Tensor grad = grad_in.contiguous(), idx = idx_in.contiguous();
  if (for_features) {
    const bool is_double = grad.scalar_type() == at::kDouble;
    const Tensor weight = weight_in.contiguous().to(is_double ? at::kDouble : at::kFloat);
    sum_features(op, grad, idx, weight, grad_features, channels_first);
  }
  if (for_weight) {
    sum_weights(op, grad, features_in.contiguous(), idx, grad_weight, channels_first);
  }
  return {grad_features, grad_weight};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add(TORCHVOX_OP(three_interpolate));
  ops.autocast("three_interpolate", {{}, {"weight"}, "features"});
  ops.add("_three_interpolate_backward", three_interpolate_backward);
}

namespace autograd {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& interpolate_backward_op() {
  static const auto op =
      typed_op<decltype(three_interpolate_backward)>("torchvox::_three_interpolate_backward");
  return op;
}

class ThreeInterpolate : public torch::autograd::Function<ThreeInterpolate> {
 public:
  static Tensor forward(AutogradContext* ctx, const Tensor& features, const Tensor& idx,
                        const Tensor& weight, bool channels_first) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    ctx->save_for_backward({features, idx, weight});
    ctx->saved_data["channels_first"] = channels_first;
    ctx->set_materialize_grads(false);
    return torchvox::three_interpolate(features, idx, weight, channels_first);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    if (!grads[0].defined()) return {Tensor(), Tensor(), Tensor(), Tensor()};
    const variable_list saved = ctx->get_saved_variables();
    const bool for_features = ctx->needs_input_grad(0), for_weight = ctx->needs_input_grad(2);
    const auto [grad_features, grad_weight] = interpolate_backward_op().call(
        grads[0], saved[0], saved[1], saved[2], ctx->saved_data["channels_first"].toBool(),
        for_features, for_weight);
    return {for_features ? grad_features : Tensor(), Tensor(), for_weight ? grad_weight : Tensor(),
            Tensor()};
  }
};

Tensor three_interpolate(const Tensor& features, const Tensor& idx, const Tensor& weight,
                         bool channels_first, const OptionalTensor& batch_offsets,
                         const OptionalTensor& query_batch_offsets, bool local_index) {
  const CloudLayout clouds{batch_offsets, query_batch_offsets, local_index};
  if (!wants_gradient(features) && !wants_gradient(weight)) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return torchvox::three_interpolate(features, idx, weight, channels_first, batch_offsets,
                                       query_batch_offsets, local_index);
  }
  for (const auto& [name, tensor] : {std::pair<const char*, const Tensor&>{"features", features},
                                     {"idx", idx},
                                     {"weight", weight}}) {
    check_given("three_interpolate", name, tensor);
  }
  if (clouds.packed()) {
    const char* op = "three_interpolate";
    check_gradient_limit_of(op, features, 0, idx, 0, 3);
    const Tensor rows = packed_rows(op, features, idx, channels_first, clouds);
    check_dense(op, "weight", weight);
    return torchvox::three_interpolate(features.unsqueeze(0), rows, weight.unsqueeze(0)).squeeze(0);
  }
  check_gradient_limit_of("three_interpolate", features, channels_first ? 2 : 1, idx, 1, 3);
  return ThreeInterpolate::apply(features, idx, weight, channels_first);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(three_interpolate));
  ops.autograd("_three_interpolate_backward", no_second_derivative());
}

}  // namespace autograd
}  // namespace
}  // namespace torchvox
