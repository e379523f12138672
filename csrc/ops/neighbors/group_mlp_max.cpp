// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"

#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

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
  ops.add("group_mlp_max", group_mlp_max, inference_only<kQueryAndGroup>());
  ops.autocast("group_mlp_max", {{{"points", "query"}, {"features", "weights", "biases"}}});
}

}  // namespace
}  // namespace torchvox
