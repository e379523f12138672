// SPDX-License-Identifier: Apache-2.0
//
// The distances of ball queries get the gradient that all distances to neighbors share.
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

const auto& ball_query_op() {
  static const auto op =
      typed_op<Outputs(const Tensor&, const Tensor&, double, c10::SymInt, std::optional<double>,
                       double, double, bool, std::string_view, std::string_view,
                       const OptionalTensor&, const OptionalTensor&)>("torchvox::ball_query");
  return op;
}
const auto& ball_query_ragged_op() {
  static const auto op =
      typed_op<Outputs(const Tensor&, const Tensor&, const Tensor&, const Tensor&, double,
                       c10::SymInt, std::optional<double>, double, double, bool, std::string_view,
                       std::string_view, bool)>("torchvox::ball_query_ragged");
  return op;
}
const auto& backward_op() {
  static const auto op = typed_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&, bool, bool, bool)>(
      "torchvox::_neighbor_distance_backward");
  return op;
}

// `batch_offsets` and `query_batch_offsets` where the indices of a ragged call are local.
class BallDistances : public torch::autograd::Function<BallDistances> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& points, const Tensor& query,
                               const OptionalTensor& batch_offsets,
                               const OptionalTensor& query_batch_offsets,
                               const std::function<Outputs()>& find) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [dist2, idx, count] = find();
    ctx->save_for_backward({points, query, idx, count, batch_offsets.value_or(Tensor()),
                            query_batch_offsets.value_or(Tensor())});
    ctx->mark_non_differentiable({idx, count});
    ctx->set_materialize_grads(false);
    return {dist2, idx, count};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list gradients(5);
    if (!grads[0].defined()) return gradients;
    const variable_list saved = ctx->get_saved_variables();
    const bool for_points = ctx->needs_input_grad(0), for_query = ctx->needs_input_grad(1);
    const OptionalTensor batch_offsets = defined(saved[4]);
    auto [grad_points, grad_query] = backward_op().call(
        grads[0], saved[0], saved[1], saved[2], /*norm=*/2, saved[3], batch_offsets,
        defined(saved[5]), batch_offsets.has_value(), for_points, for_query);
    if (for_points) gradients[0] = grad_points;
    if (for_query) gradients[1] = grad_query;
    return gradients;
  }
};

Outputs with_gradient(const Tensor& points, const Tensor& query,
                      const OptionalTensor& batch_offsets,
                      const OptionalTensor& query_batch_offsets,
                      const std::function<Outputs()>& find) {
  if (wants_gradient(points) || wants_gradient(query)) {
    const variable_list out =
        BallDistances::apply(points, query, batch_offsets, query_batch_offsets, find);
    return {out[0], out[1], out[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return find();
}

Outputs ball_query(const Tensor& points, const Tensor& query, double radius, c10::SymInt k,
                   std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
                   std::string_view fill, std::string_view dist_order,
                   const OptionalTensor& lengths, const OptionalTensor& query_lengths) {
  check_gradient_limit_of("ball_query", points, -2, query, -2, k);
  return with_gradient(points, query, {}, {}, [&] {
    return ball_query_op().call(points, query, radius, k, radius2, min_radius, core_dist2, closed,
                                fill, dist_order, lengths, query_lengths);
  });
}

Outputs ball_query_ragged(const Tensor& points, const Tensor& query, const Tensor& batch_offsets,
                          const Tensor& query_batch_offsets, double radius, c10::SymInt k,
                          std::optional<double> radius2, double min_radius, double core_dist2,
                          bool closed, std::string_view fill, std::string_view dist_order,
                          bool local_index) {
  check_gradient_limit_of("ball_query_ragged", points, -2, query, -2, k);
  const auto find = [&] {
    return ball_query_ragged_op().call(points, query, batch_offsets, query_batch_offsets, radius, k,
                                       radius2, min_radius, core_dist2, closed, fill, dist_order,
                                       local_index);
  };
  return local_index ? with_gradient(points, query, batch_offsets, query_batch_offsets, find)
                     : with_gradient(points, query, {}, {}, find);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd("ball_query", ball_query);
  ops.autograd("ball_query_ragged", ball_query_ragged);
}

}  // namespace
}  // namespace torchvox
