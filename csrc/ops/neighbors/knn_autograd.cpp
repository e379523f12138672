// SPDX-License-Identifier: Apache-2.0
//
// The gradient of the distances to both point sets follows from the saved indices alone.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <functional>

#include "csrc/ops/grouping/gradient_limit.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using Distances = std::tuple<Tensor, Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using KnnSignature = Distances(const Tensor&, const Tensor&, c10::SymInt, int64_t, std::string_view,
                               const OptionalTensor&, const OptionalTensor&);
using KnnRaggedSignature = Distances(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                     c10::SymInt, int64_t, std::string_view, bool);
using ThreeSignature = Distances(const Tensor&, const Tensor&, std::string_view,
                                 const OptionalTensor&, const OptionalTensor&);
using ThreeRaggedSignature = Distances(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                       std::string_view, bool);

const auto& backward_op() {
  static const auto op =
      typed_op<Distances(const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t,
                         const OptionalTensor&, const OptionalTensor&, const OptionalTensor&, bool,
                         bool, bool)>("torchvox::_neighbor_distance_backward");
  return op;
}

// What the gradient needs besides the indices.
struct Search {
  Tensor points, query;
  int64_t norm;
  OptionalTensor batch_offsets,
      query_batch_offsets;  // only of indices that are local to their cloud
  bool local_index;

  static Search ragged(const Tensor& points, const Tensor& query, int64_t norm,
                       const Tensor& batch_offsets, const Tensor& query_batch_offsets,
                       bool local_index) {
    if (!local_index) return {points, query, norm, {}, {}, false};
    return {points, query, norm, batch_offsets, query_batch_offsets, true};
  }
};

// The op itself, with all its arguments.
using Forward = std::function<Distances()>;

// `points` and `query` are arguments of their own, so that autograd sees them.
class NeighborDistance : public torch::autograd::Function<NeighborDistance> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& points, const Tensor& query,
                               const Search& search, const Forward& op) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    auto [dist2, idx] = op();
    ctx->save_for_backward({points, query, idx, search.batch_offsets.value_or(Tensor()),
                            search.query_batch_offsets.value_or(Tensor())});
    ctx->saved_data["norm"] = search.norm;
    ctx->saved_data["local_index"] = search.local_index;
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({idx});
    return {dist2, idx};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list out(4);
    if (!grads[0].defined()) return out;
    const variable_list saved = ctx->get_saved_variables();
    const bool for_points = ctx->needs_input_grad(0), for_query = ctx->needs_input_grad(1);
    auto [grad_points, grad_query] =
        backward_op().call(grads[0], saved[0], saved[1], saved[2], ctx->saved_data["norm"].toInt(),
                           std::nullopt, defined(saved[3]), defined(saved[4]),
                           ctx->saved_data["local_index"].toBool(), for_points, for_query);
    if (for_points) out[0] = std::move(grad_points);
    if (for_query) out[1] = std::move(grad_query);
    return out;
  }
};

Distances differentiable(const Search& search, const Forward& op) {
  if (wants_gradient(search.points) || wants_gradient(search.query)) {
    const auto out = NeighborDistance::apply(search.points, search.query, search, op);
    return {out[0], out[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return op();
}

Distances knn(const Tensor& points, const Tensor& query, c10::SymInt k, int64_t norm,
              std::string_view dist_order, const OptionalTensor& lengths,
              const OptionalTensor& query_lengths) {
  check_gradient_limit_of("knn", points, -2, query, -2, k);
  static const auto op = typed_op<KnnSignature>("torchvox::knn");
  return differentiable(Search{points, query, norm, {}, {}, false}, [&] {
    return op.call(points, query, k, norm, dist_order, lengths, query_lengths);
  });
}

Distances knn_ragged(const Tensor& points, const Tensor& query, const Tensor& batch_offsets,
                     const Tensor& query_batch_offsets, c10::SymInt k, int64_t norm,
                     std::string_view dist_order, bool local_index) {
  check_gradient_limit_of("knn_ragged", points, -2, query, -2, k);
  static const auto op = typed_op<KnnRaggedSignature>("torchvox::knn_ragged");
  return differentiable(
      Search::ragged(points, query, norm, batch_offsets, query_batch_offsets, local_index), [&] {
        return op.call(points, query, batch_offsets, query_batch_offsets, k, norm, dist_order,
                       local_index);
      });
}

Distances three_nn(const Tensor& query, const Tensor& points, std::string_view dist_order,
                   const OptionalTensor& lengths, const OptionalTensor& query_lengths) {
  check_gradient_limit_of("three_nn", points, -2, query, -2, 3);
  static const auto op = typed_op<ThreeSignature>("torchvox::three_nn");
  return differentiable(Search{points, query, 2, {}, {}, false},
                        [&] { return op.call(query, points, dist_order, lengths, query_lengths); });
}

Distances three_nn_ragged(const Tensor& query, const Tensor& points,
                          const Tensor& query_batch_offsets, const Tensor& batch_offsets,
                          std::string_view dist_order, bool local_index) {
  check_gradient_limit_of("three_nn_ragged", points, -2, query, -2, 3);
  static const auto op = typed_op<ThreeRaggedSignature>("torchvox::three_nn_ragged");
  return differentiable(
      Search::ragged(points, query, 2, batch_offsets, query_batch_offsets, local_index), [&] {
        return op.call(query, points, query_batch_offsets, batch_offsets, dist_order, local_index);
      });
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.autograd("knn", knn);
  ops.autograd("knn_ragged", knn_ragged);
  ops.autograd("three_nn", three_nn);
  ops.autograd("three_nn_ragged", three_nn_ragged);
}

}  // namespace
}  // namespace torchvox
