// SPDX-License-Identifier: Apache-2.0
//
// The distances of knn, three_nn and ball_query have one gradient, to both point sets: it follows
// from the indices, and the counts of balls, alone.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {
namespace {
namespace autograd {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& distance_backward_op() {
  static const auto op = typed_op<std::tuple<Tensor, Tensor>(
      const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t, const OptionalTensor&,
      const OptionalTensor&, const OptionalTensor&, bool, bool, bool)>(
      "torchvox::_neighbor_distance_backward");
  return op;
}

// The offsets are given where indices are local to their cloud. `search` is the op itself: dist2,
// idx and the count of balls.
class NeighborDistance : public torch::autograd::Function<NeighborDistance> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& points, const Tensor& query,
                               const OptionalTensor& batch_offsets,
                               const OptionalTensor& query_batch_offsets, int64_t norm,
                               const std::function<variable_list()>& search) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const variable_list out = search();
    ctx->save_for_backward({points, query, out[1], out.size() == 3 ? out[2] : Tensor(),
                            batch_offsets.value_or(Tensor()),
                            query_batch_offsets.value_or(Tensor())});
    ctx->saved_data["norm"] = norm;
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({out.begin() + 1, out.end()});
    return out;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list out(6);
    if (!grads[0].defined()) return out;
    const variable_list saved = ctx->get_saved_variables();
    const bool for_points = ctx->needs_input_grad(0), for_query = ctx->needs_input_grad(1);
    auto [grad_points, grad_query] = distance_backward_op().call(
        grads[0], saved[0], saved[1], saved[2], ctx->saved_data["norm"].toInt(), defined(saved[3]),
        defined(saved[4]), defined(saved[5]), saved[4].defined(), for_points, for_query);
    if (for_points) out[0] = std::move(grad_points);
    if (for_query) out[1] = std::move(grad_query);
    return out;
  }
};

struct Search {
  const char* op;
  const Tensor& points;
  const Tensor& query;
  const c10::SymInt& k;
  int64_t norm;
  const CloudLayout& layout;

  template <class Forward>
  auto differentiable(const Forward& forward) const {
    check_gradient_limit_of(op, points, -2, query, -2, k);
    if (!wants_gradient(points) && !wants_gradient(query)) {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      return forward();
    }
    check_given(op, "points", points);
    check_given(op, "query", query);
    const bool local = layout.local_index && layout.packed();
    const variable_list out = NeighborDistance::apply(
        points, query, local ? layout.batch_offsets : kNoTensor,
        local ? layout.query_batch_offsets : kNoTensor, norm, [&] {
          return std::apply([](auto... tensors) { return variable_list{tensors...}; }, forward());
        });
    if constexpr (std::tuple_size_v<decltype(forward())> == 3) {
      return std::make_tuple(out[0], out[1], out[2]);
    } else {
      return std::make_tuple(out[0], out[1]);
    }
  }
};

std::tuple<Tensor, Tensor, Tensor> ball_query(
    const Tensor& points, const Tensor& query, double radius, c10::SymInt k,
    std::optional<double> radius2, double min_radius, double core_dist2, bool closed,
    std::string_view fill, std::string_view dist_order, const OptionalTensor& lengths,
    const OptionalTensor& query_lengths, const OptionalTensor& batch_offsets,
    const OptionalTensor& query_batch_offsets, bool local_index) {
  const CloudLayout layout{batch_offsets, query_batch_offsets, local_index};
  return Search{"ball_query", points, query, k, 2, layout}.differentiable([&] {
    return torchvox::ball_query(points, query, radius, k, radius2, min_radius, core_dist2, closed,
                                fill, dist_order, lengths, query_lengths, batch_offsets,
                                query_batch_offsets, local_index);
  });
}

std::tuple<Tensor, Tensor> knn(const Tensor& points, const Tensor& query, c10::SymInt k,
                               int64_t norm, std::string_view dist_order,
                               const OptionalTensor& lengths, const OptionalTensor& query_lengths,
                               const OptionalTensor& batch_offsets,
                               const OptionalTensor& query_batch_offsets, bool local_index) {
  const CloudLayout layout{batch_offsets, query_batch_offsets, local_index};
  return Search{"knn", points, query, k, norm, layout}.differentiable([&] {
    return torchvox::knn(points, query, k, norm, dist_order, lengths, query_lengths, batch_offsets,
                         query_batch_offsets, local_index);
  });
}

std::tuple<Tensor, Tensor> three_nn(const Tensor& query, const Tensor& points,
                                    std::string_view dist_order, const OptionalTensor& lengths,
                                    const OptionalTensor& query_lengths,
                                    const OptionalTensor& batch_offsets,
                                    const OptionalTensor& query_batch_offsets, bool local_index) {
  const CloudLayout layout{batch_offsets, query_batch_offsets, local_index};
  const c10::SymInt k = 3;
  return Search{"three_nn", points, query, k, 2, layout}.differentiable([&] {
    return torchvox::three_nn(query, points, dist_order, lengths, query_lengths, batch_offsets,
                              query_batch_offsets, local_index);
  });
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd(TORCHVOX_OP(ball_query));
  ops.autograd(TORCHVOX_OP(knn));
  ops.autograd(TORCHVOX_OP(three_nn));
}

}  // namespace autograd
}  // namespace
}  // namespace torchvox
