// SPDX-License-Identifier: Apache-2.0
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Outputs = std::tuple<Tensor, Tensor, Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& backward_op() {
  static const auto op =
      typed_op<Outputs(const Tensor&, const Tensor&, const Tensor&, const Tensor&, c10::SymInt,
                       c10::ArrayRef<double>, c10::SymIntArrayRef, bool, bool, bool, bool, bool,
                       bool)>("torchvox::_query_and_group_backward");
  return op;
}

class QueryAndGroup : public torch::autograd::Function<QueryAndGroup> {
 public:
  // `group` is the op itself.
  static variable_list forward(AutogradContext* ctx, const Tensor& points, const Tensor& query,
                               const OptionalTensor& features, c10::ArrayRef<double> radii,
                               c10::SymIntArrayRef ks, bool use_xyz, bool normalize_xyz,
                               bool features_first, const std::function<Outputs()>& group) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [grouped, idx, count] = group();
    ctx->save_for_backward({points, query, idx});
    ctx->saved_data["has_features"] = features.has_value();
    ctx->saved_data["channels"] = features ? features->sym_size(2) : c10::SymInt(0);
    ctx->saved_data["radii"] = radii.vec();
    ctx->saved_data["ks"] = ks.vec();
    ctx->saved_data["use_xyz"] = use_xyz;
    ctx->saved_data["normalize_xyz"] = normalize_xyz;
    ctx->saved_data["features_first"] = features_first;
    ctx->mark_non_differentiable({idx, count});
    ctx->set_materialize_grads(false);
    return {grouped, idx, count};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list gradients(9);
    if (!grads[0].defined()) return gradients;
    const variable_list saved = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    const bool use_xyz = data["use_xyz"].toBool();
    const bool for_points = use_xyz && ctx->needs_input_grad(0);
    const bool for_query = use_xyz && ctx->needs_input_grad(1);
    const bool for_features = data["has_features"].toBool() && ctx->needs_input_grad(2);
    std::vector<c10::SymInt> ks;
    for (const c10::IValue& k : data["ks"].toList()) ks.push_back(k.toSymInt());
    const auto [grad_points, grad_query, grad_features] = backward_op().call(
        grads[0], saved[0], saved[1], saved[2], data["channels"].toSymInt(),
        data["radii"].toDoubleVector(), ks, use_xyz, data["normalize_xyz"].toBool(),
        data["features_first"].toBool(), for_points, for_query, for_features);
    if (for_points) gradients[0] = grad_points;
    if (for_query) gradients[1] = grad_query;
    if (for_features) gradients[2] = grad_features;
    return gradients;
  }
};

Outputs query_and_group(const Tensor& points, const Tensor& query, const OptionalTensor& features,
                        c10::ArrayRef<double> radii, c10::SymIntArrayRef ks, bool use_xyz,
                        bool normalize_xyz, bool features_first, bool closed,
                        std::string_view dist_order, const OptionalTensor& lengths,
                        const OptionalTensor& query_lengths) {
  const auto group = [&] {
    return torchvox::query_and_group(points, query, features, radii, ks, use_xyz, normalize_xyz,
                                     features_first, closed, dist_order, lengths, query_lengths);
  };
  const bool wanted = (use_xyz && (wants_gradient(points) || wants_gradient(query))) ||
      (features && wants_gradient(*features));
  if (!wanted) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return group();
  }
  c10::SymInt slots = 0;
  for (const c10::SymInt& k : ks) slots = slots + k;
  if (use_xyz) check_gradient_limit_of("query_and_group", points, -2, query, -2, slots);
  if (features) check_gradient_limit_of("query_and_group", *features, -2, query, -2, slots);
  const variable_list out = QueryAndGroup::apply(points, query, features, radii, ks, use_xyz,
                                                 normalize_xyz, features_first, group);
  return {out[0], out[1], out[2]};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(query_and_group));
  ops.autograd("_query_and_group_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
