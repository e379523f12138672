// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/bev/max_height.h"

#include "csrc/ops/bev/checks.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

HeightCode parse_code(const char* op, const BevGrid& grid, std::optional<at::ScalarType> out_dtype,
                      double fill, int64_t lowest_code) {
  const at::ScalarType type = out_dtype.value_or(at::kFloat);
  check_type(type == at::kFloat || type == at::kByte || type == at::kUInt16, op,
             "out_dtype must be float32, uint8 or uint16", type);
  check_value(lowest_code >= 0 && lowest_code <= 254, op, "lowest_code must be in [0, 254]",
              lowest_code);
  HeightCode code;
  code.format = type == at::kFloat ? HeightFormat::kFloat
      : type == at::kByte          ? HeightFormat::kUInt8
                                   : HeightFormat::kUInt16;
  code.fill = static_cast<float>(fill);
  code.lowest_code = static_cast<int>(lowest_code);
  code.z0 = grid.lower[2];
  code.z1 = grid.upper[2];
  return code;
}

// Everything that is known before data is read; the same for the CPU, CUDA and Meta keys.
struct MaxHeightPlan {
  BevGrid grid;
  HeightCode code;
  at::ScalarType out_dtype;
  c10::SymInt batches;
  c10::SymDimVector image;  // [B, H, W]
};

MaxHeightPlan plan_max_height(const char* op, const Tensor& points, c10::ArrayRef<double> range,
                              c10::ArrayRef<int64_t> size, const OptionalTensor& batch_offsets,
                              const OptionalTensor& num_valid, std::string_view orientation,
                              std::optional<at::ScalarType> out_dtype, double fill,
                              int64_t lowest_code) {
  Inputs in(op);
  add_points(in, points);
  MaxHeightPlan plan;
  plan.grid = parse_grid(op, range, size, orientation);
  plan.code = parse_code(op, plan.grid, out_dtype, fill, lowest_code);
  plan.out_dtype = out_dtype.value_or(at::kFloat);
  plan.batches = add_batch(in, batch_offsets, num_valid);
  plan.image = {plan.batches, rows_of(plan.grid), columns_of(plan.grid)};
  return plan;
}

// Returns height, top_index, if `kWithIndex`, and counts.
template <bool kWithIndex>
auto max_height(const Tensor& points, c10::ArrayRef<double> range, at::IntArrayRef size,
                const OptionalTensor& batch_offsets, const OptionalTensor& num_valid,
                std::string_view orientation, std::optional<at::ScalarType> out_dtype, double fill,
                int64_t lowest_code) {
  const char* op = kWithIndex ? "bev_max_height_with_index" : "bev_max_height";
  const MaxHeightPlan plan = plan_max_height(op, points, range, size, batch_offsets, num_valid,
                                             orientation, out_dtype, fill, lowest_code);
  BevMaxHeightArgs args;
  const Tensor height = output(args.height, plan.image, plan.out_dtype, points);
  const Tensor top_index = kWithIndex ? output(args.top_index, plan.image, points) : Tensor();
  const Tensor counts = output(args.counts, {plan.batches + 1, int64_t{kBevCounts}}, points);
  if (!points.is_meta()) {
    const Clouds packed(points, batch_offsets, num_valid);
    args.points = packed.view;
    args.grid = plan.grid;
    args.code = plan.code;
    run(op, points, args);
  }
  if constexpr (kWithIndex) {
    return std::make_tuple(height, top_index, counts);
  } else {
    return std::make_tuple(height, counts);
  }
}

Tensor bev_max_height_backward(const Tensor& grad_height, const Tensor& top_index,
                               const Tensor& points, c10::ArrayRef<double> point_cloud_range,
                               at::IntArrayRef size, const OptionalTensor& batch_offsets,
                               const OptionalTensor& num_valid, std::string_view orientation) {
  const char* op = "_bev_max_height_backward";
  const MaxHeightPlan plan = plan_max_height(op, points, point_cloud_range, size, batch_offsets,
                                             num_valid, orientation, at::kFloat, 0., 1);
  Inputs in(op);
  const char* letters[] = {"B", "H", "W"};
  for (int axis = 0; axis < 3; ++axis) in.add_size(letters[axis], plan.image[axis], "the image");
  in.add("points", points, Dtypes::kFloats, "[N, C]");
  in.add("grad_height", grad_height, Dtypes::kFloat32, "[B, H, W]");
  in.add("top_index", top_index, Dtypes::kInt32, "[B, H, W]");
  BevMaxHeightBackwardArgs args;
  const Tensor grad_points = output_as(args.grad_points, points);
  if (points.is_meta()) return grad_points;
  const Clouds packed(points, batch_offsets, num_valid);
  Memory memory;
  args.points = packed.view;
  args.grid = plan.grid;
  args.grad_height = memory.of<float>(grad_height);
  args.top_index = memory.of<int32_t>(top_index);
  run(op, points, args);
  return grad_points;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("bev_max_height", max_height<false>);
  ops.add("bev_max_height_with_index", max_height<true>);
  // A cell's gradient goes to the z of its top point, which only the indexed op returns.
  ops.differentiable("bev_max_height", {"_bev_max_height_backward", "bev_max_height_with_index"});
  ops.differentiable("bev_max_height_with_index", {"_bev_max_height_backward"});
  ops.add("_bev_max_height_backward", bev_max_height_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
