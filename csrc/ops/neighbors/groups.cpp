// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/segment_sum.h"
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"
#include "csrc/kernels/neighbors/query_and_group.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/neighbor_index.h"

namespace torchvox {
namespace {

// What a row of the grouped tensor is made of.
struct Layout {
  c10::ArrayRef<double> radii;
  c10::SymIntArrayRef ks;
  bool use_xyz;
  bool normalize_xyz;
  bool features_first;

  c10::SymInt slots() const {
    c10::SymInt sum = 0;
    for (const c10::SymInt& k : ks) sum = sum + k;
    return sum;
  }
  GroupRadii divisors() const {
    GroupRadii divisors;
    if (!normalize_xyz) return divisors;
    int64_t end = 0;
    for (size_t r = 0; r < radii.size(); ++r) {
      end += ks[r].guard_int(__FILE__, __LINE__);
      divisors.end[divisors.count] = end;
      divisors.radius[divisors.count++] = radii[r];
    }
    return divisors;
  }
};

void check_layout(const char* op, const Layout& layout) {
  check_value(!layout.radii.empty() && layout.radii.size() <= size_t{kMostGroupedRadii}, op,
              "radii must be 1 to 8 numbers", layout.radii);
  check_value(layout.ks.size() == layout.radii.size(), op, "ks must be one number a radius",
              layout.ks);
  for (const double radius : layout.radii) {
    const bool divides = layout.normalize_xyz;  // in float32, where a tiny radius would be 0
    check_value(divides ? static_cast<float>(radius) > 0 : radius >= 0, op,
                {"radii must be ", divides ? "> 0 in float32 with normalize_xyz" : ">= 0"}, radius);
  }
  for (const c10::SymInt& k : layout.ks) check_count(op, "ks", k);
}

// The balls of a row, kMostRadii at a time.
void find_neighbors(const char* op, const Clouds& points, const Clouds& query, const Layout& layout,
                    bool closed, DistOrder order, const Tensor& idx, const Tensor& count) {
  BallQueryArgs args;
  args.points = points.view;
  args.query = query.view;
  args.order = points.view.columns == 3 ? order : DistOrder::kLoop;
  args.slots = idx.size(2);
  args.idx = idx.mutable_data_ptr<int32_t>();
  args.counts = count.size(2);
  int64_t slot = 0;
  const size_t radii = layout.radii.size();
  for (size_t first = 0; first < radii; first += kMostRadii) {
    args.radii = static_cast<int>(std::min(radii - first, size_t{kMostRadii}));
    args.count = count.mutable_data_ptr<int32_t>() + first;
    for (int r = 0; r < args.radii; ++r) {
      args.radius[r] =
          ball_radius(args.points.dtype, layout.radii[first + r], nullptr, 0, 0, closed);
      args.radius[r].k = layout.ks[first + r].guard_int(__FILE__, __LINE__);
      args.radius[r].slot = slot;
      slot += args.radius[r].k;
    }
    run(op, points.points, args);
  }
}

std::tuple<Tensor, Tensor, Tensor> query_and_group(
    const Tensor& points_in, const Tensor& query_in, const OptionalTensor& features,
    c10::ArrayRef<double> radii, c10::SymIntArrayRef ks, bool use_xyz, bool normalize_xyz,
    bool features_first, bool closed, std::string_view dist_order, const OptionalTensor& lengths,
    const OptionalTensor& query_lengths) {
  const char* op = "query_and_group";
  Inputs in(op);
  add_points_and_query(in, points_in, query_in,
                       {kNoTensor, kNoTensor, false, lengths, query_lengths}, false);
  const c10::SymInt clouds = in["B"], queries = in["M"];
  check_value(features || use_xyz, op, "features must be given without use_xyz", "None");
  in.add("features", features, Dtypes::kFloats, "[B, N, C]");
  const Layout layout{radii, ks, use_xyz, normalize_xyz, features_first};
  check_layout(op, layout);
  const DistOrder order = parse_dist_order(op, dist_order);

  const c10::SymInt slots = layout.slots();
  const c10::SymInt channels = features ? in["C"] : c10::SymInt(0);
  const c10::SymInt columns = use_xyz ? channels + points_in.sym_size(2) : channels;
  const Tensor& typed = features ? *features : points_in;
  QueryAndGroupArgs args;
  const Tensor grouped =
      output(args.grouped, {clouds, queries, slots, columns}, typed.scalar_type(), points_in);
  const Tensor idx = empty_beside({clouds, queries, slots}, at::kInt, points_in);
  const Tensor count = empty_beside({clouds, queries, c10::SymInt(static_cast<int64_t>(ks.size()))},
                                    at::kInt, points_in);
  if (points_in.is_meta()) return {grouped, idx, count};

  const Clouds points(points_in, {}, lengths), query(query_in, {}, query_lengths);
  find_neighbors(op, points, query, layout, closed, order, idx, count);

  Memory memory;
  args.points = points.view;
  args.query = query.view;
  args.grouped_dtype = dtype_of(typed.scalar_type());
  args.features = memory.of(features);
  if (features) args.channels = features->size(2);
  args.idx = idx.const_data_ptr<int32_t>();
  args.slots = idx.size(2);
  args.radii = layout.divisors();
  args.use_xyz = use_xyz;
  args.features_first = features_first;
  run(op, points.points, args);
  return {grouped, idx, count};
}

std::tuple<Tensor, Tensor, Tensor> query_and_group_backward(
    const Tensor& grad_in, const Tensor& points, const Tensor& query, const Tensor& idx_in,
    c10::SymInt channels, c10::ArrayRef<double> radii, c10::SymIntArrayRef ks, bool use_xyz,
    bool normalize_xyz, bool features_first, bool for_points, bool for_query, bool for_features) {
  const char* op = "_query_and_group_backward";
  const Layout layout{radii, ks, use_xyz, normalize_xyz, features_first};
  check_layout(op, layout);
  check_size(channels.sym_ge(0), op, "channels must be >= 0", channels);
  check_value(use_xyz || !(for_points || for_query), op,
              "for_points and for_query must be False without use_xyz", "True");
  Inputs in(op);
  add_points_and_query(in, points, query, {}, false);
  in.add("idx", idx_in, Dtypes::kInt32, "[B, M, K]");
  in.add_size("columns", use_xyz ? channels + in["D"] : channels);
  in.add("grad", grad_in, Dtypes::kFloats, "[B, M, K, columns]");
  if (for_points || for_features) {
    check_gradient_limit(op, in["N"], in["M"] * in["K"]);
  }
  const auto empty_like = [&](const Tensor& like) {
    return empty_beside({0}, like.scalar_type(), points);
  };
  Tensor grad_points = empty_like(points), grad_query = empty_like(points);
  Tensor grad_features = empty_like(grad_in);
  if (for_query) grad_query = empty_as(query);
  if (grad_in.is_meta()) {
    if (for_points) grad_points = empty_as(points);
    if (for_features) {
      grad_features = empty_beside({in["B"], in["N"], channels}, grad_in.scalar_type(), points);
    }
    return {grad_points, grad_query, grad_features};
  }

  const Tensor grad = grad_in.contiguous(), idx = idx_in.contiguous();
  const int64_t clouds = idx.size(0), slots = idx.size(2), dims = use_xyz ? points.size(2) : 0;
  const int64_t features = channels.guard_int(__FILE__, __LINE__);
  const int64_t first_axis = features_first ? features : 0;
  const int64_t first_channel = features_first ? 0 : dims;
  OwnedInverseIndex owned;
  if (for_points || for_features) owned = build_inverse_index(op, idx, clouds, points.size(1));
  const auto sum_by_point = [&](const Tensor& of_slots) {  // contiguous
    const Tensor sums =
        empty_beside({clouds, points.size(1), of_slots.size(3)}, of_slots.scalar_type(), of_slots);
    SegmentSumArgs args;
    args.grad = of_slots.const_data_ptr();
    args.dtype = dtype_of(of_slots.scalar_type());
    args.inverse = owned.inverse;
    args.channels = of_slots.size(3);
    args.out = sums.mutable_data_ptr();
    run(op, of_slots, args);
    return sums;
  };

  // All columns are summed at once where those of the coordinates need nothing done to them.
  const bool as_they_are = grad.scalar_type() == points.scalar_type() && !normalize_xyz;
  if (for_features) {
    const Tensor sums = sum_by_point(grad);
    const auto columns_of = [&](int64_t first, int64_t count) {
      return sums.narrow(2, first, count).clone(at::MemoryFormat::Contiguous);
    };
    grad_features = use_xyz ? columns_of(first_channel, features) : sums;
    if (for_points && as_they_are) grad_points = columns_of(first_axis, dims);
  }
  const bool points_left = for_points && !(for_features && as_they_are);
  if (points_left || for_query) {
    Tensor of_slots;
    if (points_left) {
      of_slots = at::empty({clouds, idx.size(1), slots, points.size(2)}, points.options());
    }
    QueryAndGroupBackwardArgs args;
    args.grad = grad.const_data_ptr();
    args.grad_dtype = dtype_of(grad.scalar_type());
    args.dtype = dtype_of(points.scalar_type());
    args.rows = clouds * idx.size(1);
    args.slots = slots;
    args.columns = grad.size(3);
    args.first = first_axis;
    args.dims = points.size(2);
    args.radii = layout.divisors();
    args.grad_slots = points_left ? of_slots.mutable_data_ptr() : nullptr;
    args.grad_query = for_query ? grad_query.mutable_data_ptr() : nullptr;
    run(op, points, args);
    if (points_left) grad_points = sum_by_point(of_slots);
  }
  return {grad_points, grad_query, grad_features};
}

void check_gradient(const Call& call) {
  const Tensor query = call.tensor("query");
  c10::SymInt slots = 0;
  for (const c10::IValue& k : call["ks"].toList()) slots = slots + k.toSymInt();
  if (call["use_xyz"].toBool()) {
    check_gradient_limit_of(call.op(), call.tensor("points"), -2, query, -2, slots);
  }
  if (const OptionalTensor features = call.optional("features")) {
    check_gradient_limit_of(call.op(), *features, -2, query, -2, slots);
  }
}

c10::IValue channels_of_features(const Call& call) { return call.size("features", 2); }

// `in` columns of the first weight.
void check_layers(const char* op, at::TensorList weights, at::TensorList biases, c10::SymInt in,
                  const Tensor& points) {
  check_value(weights.size() >= 1 && weights.size() <= size_t{kMostMlpLayers}, op,
              "weights must be 1 to 8 tensors", weights.size());
  check_value(biases.size() == weights.size(), op, "biases must be one tensor a weight",
              biases.size());
  const at::ScalarType type = weights[0].scalar_type();
  check_type(is_coordinate_type(type), op, "weights must be float16, bfloat16, float32 or float64",
             type);
  for (size_t l = 0; l < weights.size(); ++l) {
    const Tensor &weight = weights[l], &bias = biases[l];
    check_device(op, "weights", weight, points);
    check_device(op, "biases", bias, points);
    check_type(weight.scalar_type() == type, op, "weights must have one dtype",
               weight.scalar_type());
    check_dtype(op, "biases", bias.scalar_type(), "weights", type);
    check_value(weight.dim() == 2, op, "weights must be [C_out, C_in] each", weight.sym_sizes());
    check_size(weight.sym_size(1).sym_eq(in), op,
               l == 0 ? "weights[0] must have one column per coordinate and feature"
                      : "weights must have one column per output of the layer before",
               weight.sym_sizes());
    in = weight.sym_size(0);
    check_below(in, kIndexLimit, op, "weights must have fewer than 2^31 rows", weight.sym_sizes());
    check_value(bias.dim() == 1, op, "biases must be [C_out] each", bias.sym_sizes());
    check_size(bias.sym_size(0).sym_eq(in), op, "biases must be [C_out] each", bias.sym_sizes());
  }
}

// The tensor, or a copy, whose B * M rows lie at equal distances.
Tensor with_even_rows(const Tensor& tensor) {
  const bool unit = tensor.dim() == 2 || tensor.size(2) <= 1 || tensor.stride(2) == 1;
  const bool even = tensor.size(0) <= 1 || tensor.stride(0) == tensor.size(1) * tensor.stride(1);
  return unit && even ? tensor : tensor.contiguous();
}

Tensor group_mlp_max(const Tensor& points_in, const Tensor& query_in,
                     const OptionalTensor& features, const Tensor& idx_in, const Tensor& count_in,
                     at::TensorList weights, at::TensorList biases, bool use_xyz,
                     std::optional<double> normalize_radius, bool features_first) {
  const char* op = "group_mlp_max";
  Inputs in(op);
  add_points_and_query(in, points_in, query_in, {}, false);
  in.add("idx", idx_in, Dtypes::kInt32, "[B, M, k]");
  in.add("count", count_in, Dtypes::kInt32, "[B, M]");
  check_below(in["k"], kIndexLimit, op, "idx must have k below 2^31", idx_in.sym_sizes());
  check_value(features || use_xyz, op, "features must be given without use_xyz", "None");
  in.add("features", features, Dtypes::kFloats, "[B, N, C]");
  const at::ScalarType type = weights.empty() ? at::kFloat : weights[0].scalar_type();
  if (features) check_dtype(op, "features", features->scalar_type(), "weights", type);
  check_layers(op, weights, biases,
               (use_xyz ? in["D"] : c10::SymInt(0)) + (features ? in["C"] : c10::SymInt(0)),
               points_in);
  check_value(!normalize_radius || *normalize_radius > 0, op, "normalize_radius must be > 0",
              normalize_radius.value_or(0));

  GroupMlpArgs args;
  const Tensor out =
      output(args.out, {in["B"], in["M"], weights.back().sym_size(0)}, type, points_in);
  if (points_in.is_meta()) return out;

  const Clouds points(points_in, {}, {}), query(query_in, {}, {});
  const Tensor idx = with_even_rows(idx_in), count = with_even_rows(count_in);
  Memory memory;
  args.points = points.view;
  args.query = query.view;
  args.mlp_dtype = dtype_of(type);
  args.features = memory.of(features);
  if (features) args.channels = features->size(2);
  args.idx = idx.const_data_ptr<int32_t>();
  args.slots = idx.size(2);
  args.idx_stride = idx.stride(1);
  args.count = count.const_data_ptr<int32_t>();
  args.count_stride = count.stride(1);
  args.use_xyz = use_xyz;
  args.features_first = features_first;
  args.divisor = normalize_radius.value_or(0);
  args.layers = static_cast<int>(weights.size());
  for (size_t l = 0; l < weights.size(); ++l) {
    args.layer[l].weight = memory.of(weights[l]);
    args.layer[l].in = weights[l].size(1);
    args.layer[l].out = weights[l].size(0);
    args.layer[l].bias = memory.of(biases[l]);
  }
  run(op, points.points, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("query_and_group", query_and_group);
  ops.autocast("query_and_group", {{{"points", "query"}}});
  ops.differentiable("query_and_group",
                     {.backward = "_query_and_group_backward",
                      .derived = {{"channels", channels_of_features}},
                      .coordinates_flag = "use_xyz",
                      .prepare = check_gradient});
  ops.add("_query_and_group_backward", query_and_group_backward, no_second_derivative());
  ops.add("group_mlp_max", group_mlp_max, inference_only<kQueryAndGroup>());
  ops.autocast("group_mlp_max", {{{"points", "query"}, {"features", "weights", "biases"}}});
}

}  // namespace
}  // namespace torchvox
