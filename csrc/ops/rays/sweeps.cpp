// SPDX-License-Identifier: Apache-2.0
//
// From a sensor to a network's input: merge_sweeps, crop_points, unpack_points.
#include "csrc/kernels/rays/sweeps.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

using Bounds = std::optional<c10::ArrayRef<double>>;
using Points = std::tuple<Tensor, Tensor, Tensor>;
constexpr c10::ArrayRef<double> kNoBounds;

DropBoxes parse_boxes(const char* op, const char* name, c10::ArrayRef<double> bounds, size_t most) {
  const bool nan = std::any_of(bounds.begin(), bounds.end(), [](double b) { return is_nan(b); });
  check_value(bounds.size() % 6 == 0 && bounds.size() <= 6 * most && !nan, op,
              {name, " must be (x0, y0, z0, x1, y1, z1)",
               most == 1 ? ", not NaN" : " per box, not NaN, of 32 boxes at most"},
              bounds);
  DropBoxes boxes;
  boxes.count = static_cast<int>(bounds.size() / 6);
  for (size_t i = 0; i < bounds.size(); ++i)
    boxes.bounds[i / 6][i % 6] = static_cast<float>(bounds[i]);
  return boxes;
}

Points merge_sweeps(const Tensor& points, const Tensor& poses, const OptionalTensor& lengths,
                    const OptionalTensor& order, const OptionalTensor& age,
                    const OptionalTensor& times, const OptionalTensor& knots, Bounds drop_boxes) {
  const char* op = "merge_sweeps";
  Inputs in(op);
  in.add("points", points, Dtypes::kFloat32, "[S, N, C >= 3]");
  check_value(times.has_value() == knots.has_value(), op, "times and knots must be given together",
              times ? "times" : "knots");
  in.add("times", times, Dtypes::kWideFloats, "[S, N]");
  in.add("knots", knots, Dtypes::kWideFloats, "[S, K >= 2]");
  in.add("poses", poses, Dtypes::kWideFloats, knots ? "[S, K, 3, 4]" : "[S, 3, 4]");
  in.add("lengths", lengths, Dtypes::kIndices, "[S]");
  in.add("order", order, Dtypes::kIndices, "[L]");
  in.add("age", age, Dtypes::kWideFloats, "[S]");
  const c10::SymInt positions = in[order ? "L" : "S"], rows = positions * in["N"];
  check_below(positions, kMostSweeps + 1, op,
              {order ? "order" : "points", " must have 64 sweeps at most"}, positions);
  check_below(rows, kIndexLimit, op, "the rows of all sweeps must be fewer than 2^31", rows);
  MergeSweepsArgs args;
  args.boxes = parse_boxes(op, "drop_boxes", drop_boxes.value_or(kNoBounds), kMostBoxes);
  const Tensor out = output(args.points, {rows, in["C"] + (age ? 1 : 0)}, points);
  const Tensor num_points = output(args.num_points, {1}, points);
  const Tensor counts = output(args.counts, {in["S"] + 1, int64_t{kSweepCounts}}, points);
  if (points.is_meta()) return {out, num_points, counts};
  const Clouds sweeps(points, {}, lengths);
  Memory memory;
  // A tensor without elements has no memory, and yet is given.
  const auto reals = [&](const OptionalTensor& tensor) {
    static const double kNone = 0;
    if (!tensor) return Reals();
    const void* const data = memory.of(tensor);
    return Reals{data != nullptr ? data : &kNone, dtype_of(tensor->scalar_type())};
  };
  args.sweeps = sweeps.view;
  args.order = memory.indices(order);
  args.positions = positions.expect_int();
  args.poses = reals(poses);
  args.age = reals(age);
  args.knots = reals(knots);
  if (times) {
    args.num_knots = knots->size(1);
    args.times = {times->const_data_ptr(), dtype_of(times->scalar_type())};
    for (int k = 0; k < 2; ++k) args.time_strides[k] = times->stride(k);
  }
  run(op, points, args);
  return {out, num_points, counts};
}

Points crop_points(const Tensor& points, const OptionalTensor& lengths, Bounds keep_range,
                   Bounds drop_boxes, std::string_view finite) {
  const char* op = "crop_points";
  Inputs in(op);
  in.add("points", points, Dtypes::kFloat32, "[N, C >= 3] or [B, N, C >= 3]");
  if (points.dim() == 2) in.add_size("B", 1, "one cloud");
  in.add("lengths", lengths, Dtypes::kIndices, "[B]");
  check_queries(op, in["B"], in["B"] * in["N"]);
  CropPointsArgs args;
  args.boxes = parse_boxes(op, "drop_boxes", drop_boxes.value_or(kNoBounds), kMostBoxes);
  args.range = parse_boxes(op, "keep_range", keep_range.value_or(kNoBounds), 1);
  const bool all = parse_word(op, "finite", finite, "xyz", "all");
  const Tensor out = output(args.out, points.sym_sizes(), points);
  const Tensor num_points = output(args.num_points, {in["B"]}, points);
  const Tensor counts = output(args.counts, {in["B"] + 1, int64_t{kCropCounts}}, points);
  if (points.is_meta()) return {out, num_points, counts};
  const Clouds clouds(points, {}, lengths);
  args.points = clouds.view;
  if (all) args.finite_columns = args.points.columns;
  run(op, points, args);
  return {out, num_points, counts};
}

Tensor unpack_points(const Tensor& data, int64_t point_step, c10::ArrayRef<int64_t> offsets,
                     c10::List<std::string> types, const OptionalTensor& shift,
                     const OptionalTensor& scale) {
  const char* op = "unpack_points";
  Inputs in(op);
  in.add("data", data, Dtypes::kUInt8, "[T] or [S, T]");
  if (data.dim() == 1) in.add_size("S", 1, "one cloud");
  check_value(point_step >= 1 && point_step < kIndexLimit, op, "point_step must be in [1, 2^31)",
              point_step);
  const size_t columns = types.size();
  check_value(columns >= 1 && columns <= kMostFields && offsets.size() == columns, op,
              "types must be of 1 to 64 fields, and offsets as many", columns, " and ",
              offsets.size());
  UnpackPointsArgs args;
  for (size_t c = 0; c < columns; ++c) {
    const std::string type = types.get(c);
    check_value(type.size() == 2 && std::string_view("i1u1i2u2i4u4f4f8").find(type) % 2 == 0, op,
                "types must be of i1, u1, i2, u2, i4, u4, f4 and f8", "'", type, "'");
    const int bytes = type[1] - '0';
    check_value(offsets[c] >= 0 && offsets[c] <= point_step - bytes, op,
                "offsets must leave every field within point_step", offsets);
    args.fields[c] = {static_cast<int32_t>(offsets[c]), type[0], static_cast<uint8_t>(bytes)};
  }
  in.add_size("columns", static_cast<int64_t>(columns), "types");
  in.add("shift", shift, Dtypes::kFloat64, "[columns]");
  in.add("scale", scale, Dtypes::kFloat64, "[columns]");
  const c10::SymInt shape[] = {in["S"], in["T"] / point_step, in["columns"]};
  check_queries(op, shape[0], shape[0] * shape[1]);
  const Tensor out = output(args.out, c10::SymIntArrayRef(shape).slice(data.dim() == 1), data);
  if (data.is_meta()) return out;
  Memory memory;
  const Tensor rows = memory.rows(data);
  args.data = rows.const_data_ptr<uint8_t>();
  args.clouds = in["S"].expect_int();
  args.cloud_stride = rows.stride(0);
  args.points = shape[1].expect_int();
  args.point_step = point_step;
  args.columns = static_cast<int64_t>(columns);
  args.shift = memory.of<double>(shift);
  args.scale = memory.of<double>(scale);
  run(op, data, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("merge_sweeps", merge_sweeps, inference_only());
  ops.autocast("merge_sweeps", {{}, {"points", "poses", "age", "times", "knots"}});
  ops.add("crop_points", crop_points, inference_only());
  ops.autocast("crop_points", {{}, {"points"}});
  ops.add("unpack_points", unpack_points, inference_only());
  ops.autocast("unpack_points", {.wide = {"shift", "scale"}, .type = at::kDouble});
}

}  // namespace
}  // namespace torchvox
