// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbors/knn/knn.h"

#include <torch/library.h>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/checks.h"
#include "csrc/ops/core/device.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// What one op has of its own.
struct Search {
  const char* op;
  c10::SymInt k;
  int64_t norm = 2;
  std::string_view dist_order;
};

// points [B, N, D] and query [B, M, D], or [T, D] and [U, D].
void check_search(const Search& search, const Tensor& points, const Tensor& query, bool ragged) {
  const char* op = search.op;
  const int rank = ragged ? 2 : 3;
  const Rule points_rule{"points must be ", ragged ? "[T, D]" : "[B, N, D]", " with D >= 1"};
  check_value(points.dim() == rank, op, points_rule, points.sym_sizes());
  check_size(points.sym_size(-1).sym_ge(1), op, points_rule, points.sym_sizes());
  check_type(is_coordinate_type(points.scalar_type()), op,
             "points must be float16, bfloat16, float32 or float64", points.scalar_type());
  check_type(query.scalar_type() == points.scalar_type(), op, "query must have the dtype of points",
             query.scalar_type());
  check_device(op, "query", query, points);
  const Rule query_rule{
      "query must be ",
      ragged ? "[U, D] with the D of points" : "[B, M, D] with the B and D of points"};
  check_value(query.dim() == rank, op, query_rule, query.sym_sizes());
  check_size(query.sym_size(-1).sym_eq(points.sym_size(-1)), op, query_rule, query.sym_sizes());
  if (!ragged) {
    check_size(query.sym_size(0).sym_eq(points.sym_size(0)), op, query_rule, query.sym_sizes());
  }
  check_below(points.sym_size(-2), kIndexLimit, op,
              {"points must have ", ragged ? "T" : "N", " < 2^31"}, points.sym_sizes());
  check_size(search.k.sym_ge(0), op, "k must be >= 0", search.k);
  check_below(search.k, kIndexLimit, op, "k must be below 2^31", search.k);
  check_value(search.norm == 1 || search.norm == 2, op, "norm must be 1 or 2", search.norm);
  check_value(search.dist_order == "pn2" || search.dist_order == "loop", op,
              "dist_order must be 'pn2' or 'loop'", "'", search.dist_order, "'");
}

void check_vector(const char* op, const char* name, const OptionalTensor& tensor,
                  const Tensor& points, const c10::SymInt& length, const char* shape) {
  if (!tensor) return;
  check_integers(op, name, *tensor);
  check_device(op, name, *tensor, points);
  const Rule rule{name, " must be ", shape};
  check_value(tensor->dim() == 1, op, rule, tensor->sym_sizes());
  check_size(tensor->sym_size(0).sym_eq(length), op, rule, tensor->sym_sizes());
}

std::tuple<Tensor, Tensor> empty_outputs(const Search& search, const Tensor& query) {
  c10::SymDimVector shape(query.sym_sizes());
  shape.back() = search.k;
  const at::ScalarType type = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return {empty_beside(shape, type, query), empty_beside(shape, at::kInt, query)};
}

void launch_search(const Search& search, const Clouds& points, const Clouds& query,
                   bool local_index, const std::tuple<Tensor, Tensor>& out) {
  KnnArgs args;
  args.points = points.view;
  args.query = query.view;
  args.local_index = local_index;
  args.k = search.k.guard_int(__FILE__, __LINE__);
  const bool pn2 = search.dist_order == "pn2" && points.view.columns == 3;
  args.order = pn2 ? DistOrder::kPn2 : DistOrder::kLoop;
  args.manhattan = search.norm == 1;
  args.dist2 = std::get<0>(out).mutable_data_ptr();
  args.idx = std::get<1>(out).mutable_data_ptr<int32_t>();
  run(search.op, points.points, args);
}

std::tuple<Tensor, Tensor> search_batch(const Search& search, const Tensor& points,
                                        const Tensor& query, const OptionalTensor& lengths,
                                        const OptionalTensor& query_lengths) {
  check_search(search, points, query, /*ragged=*/false);
  const c10::SymInt clouds = points.sym_size(0);
  check_queries(search.op, clouds, clouds * query.sym_size(1));
  check_vector(search.op, "lengths", lengths, points, clouds, "[B]");
  check_vector(search.op, "query_lengths", query_lengths, points, clouds, "[B]");
  const auto out = empty_outputs(search, query);
  if (points.is_meta()) return out;
  launch_search(search, Clouds(points, {}, lengths), Clouds(query, {}, query_lengths),
                /*local_index=*/true, out);
  return out;
}

std::tuple<Tensor, Tensor> search_ragged(const Search& search, const Tensor& points,
                                         const Tensor& query, const Tensor& batch_offsets,
                                         const Tensor& query_batch_offsets, bool local_index) {
  const char* op = search.op;
  check_search(search, points, query, /*ragged=*/true);
  check_integers(op, "batch_offsets", batch_offsets);
  check_device(op, "batch_offsets", batch_offsets, points);
  check_value(batch_offsets.dim() == 1, op, "batch_offsets must be [B + 1]",
              batch_offsets.sym_sizes());
  check_size(batch_offsets.sym_size(0).sym_ge(1), op, "batch_offsets must be [B + 1]",
             batch_offsets.sym_sizes());
  check_vector(op, "query_batch_offsets", query_batch_offsets, points, batch_offsets.sym_size(0),
               "[B + 1], as batch_offsets");
  check_queries(op, batch_offsets.sym_size(0) - 1, query.sym_size(0));
  const auto out = empty_outputs(search, query);
  if (points.is_meta()) return out;
  launch_search(search, Clouds(points, batch_offsets, {}), Clouds(query, query_batch_offsets, {}),
                local_index, out);
  return out;
}

std::tuple<Tensor, Tensor> knn(const Tensor& points, const Tensor& query, c10::SymInt k,
                               int64_t norm, std::string_view dist_order,
                               const OptionalTensor& lengths, const OptionalTensor& query_lengths) {
  return search_batch({"knn", std::move(k), norm, dist_order}, points, query, lengths,
                      query_lengths);
}

std::tuple<Tensor, Tensor> knn_ragged(const Tensor& points, const Tensor& query,
                                      const Tensor& batch_offsets,
                                      const Tensor& query_batch_offsets, c10::SymInt k,
                                      int64_t norm, std::string_view dist_order, bool local_index) {
  return search_ragged({"knn_ragged", std::move(k), norm, dist_order}, points, query, batch_offsets,
                       query_batch_offsets, local_index);
}

std::tuple<Tensor, Tensor> three_nn(const Tensor& query, const Tensor& points,
                                    std::string_view dist_order, const OptionalTensor& lengths,
                                    const OptionalTensor& query_lengths) {
  return search_batch({"three_nn", 3, 2, dist_order}, points, query, lengths, query_lengths);
}

std::tuple<Tensor, Tensor> three_nn_ragged(const Tensor& query, const Tensor& points,
                                           const Tensor& query_batch_offsets,
                                           const Tensor& batch_offsets, std::string_view dist_order,
                                           bool local_index) {
  return search_ragged({"three_nn_ragged", 3, 2, dist_order}, points, query, batch_offsets,
                       query_batch_offsets, local_index);
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("knn", knn);
  ops.add("knn_ragged", knn_ragged);
  ops.add("three_nn", three_nn);
  ops.add("three_nn_ragged", three_nn_ragged);
}

}  // namespace
}  // namespace torchvox
