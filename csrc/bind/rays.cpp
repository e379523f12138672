// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/rays/rays.h"
#include "csrc/bind/inputs.h"
#include "csrc/kernels/rays/sweeps.h"

namespace torchvox::bind {
namespace {

Call plan_ray_visibility(RayVisibilityArgs args, Inputs& in) {
  args.points = in.packed("points", "[N, C >= 3]", "batch_offsets", "num_valid");
  const auto [nx, ny, nz] = args.grid.cells;
  check_keys(in.op(), args.grid, in['B']);
  args.origins = in.floats("origins", "[O, 3]", &args.origin_type, true);
  args.origin_rows = in['O'];
  args.origin_stride = 3;
  args.origin_index = in.indices("origin_index", "[N]");
  check(args.origin_index.given() || in['O'] == in['B'], in.op(),
        "origins must have one row per sample without origin_index", in['O']);
  args.flags = in.data<uint8_t>("ray_flags", "[N]");
  in.set('X', nx);
  in.set('Y', ny);
  in.set('Z', nz);
  args.blockers = in.bytes("blockers", "[B, Z, Y, X]");
  return call(args,
              {{Element::kUInt8, {in['B'], nz, ny, nx}},
               {Element::kInt8, {in['N']}},
               int32({in['B'] + 1, kVisibilityCounts})},
              &RayVisibilityArgs::visibility, &RayVisibilityArgs::reached,
              &RayVisibilityArgs::counts);
}

// Boxes of six bounds each; none where the node has none.
DropBoxes boxes(const char* op, const Attributes& attributes, const char* name, size_t most) {
  DropBoxes boxes;
  if (!attributes.has(name)) return boxes;
  const std::vector<double> bounds = attributes.numbers(name);
  check(bounds.size() % 6 == 0 && bounds.size() <= 6 * most, op,
        std::string(name) + " must be six bounds a box, of " + std::to_string(most) + " at most",
        bounds.size());
  boxes.count = static_cast<int>(bounds.size() / 6);
  for (size_t i = 0; i < bounds.size(); ++i) {
    boxes.bounds[i / 6][i % 6] = static_cast<float>(bounds[i]);
  }
  return boxes;
}

Reals reals(Inputs& in, const char* name, const char* layout) {
  Reals reals;
  reals.data = in.floats(name, layout, &reals.dtype, true);
  check(reals.dtype != DType::kHalf, in.op(), std::string(name) + " must be float32 or float64",
        "float16");
  return reals;
}

Call plan_merge_sweeps(MergeSweepsArgs args, Inputs& in) {
  const char* const op = in.op();
  in.data<float>("points", "[B, N, C >= 3]");
  args.sweeps = in.padded("points", "[B, N, C >= 3]", "lengths");
  args.times = reals(in, "times", "[B, N]");
  args.knots = reals(in, "knots", "[B, K >= 2]");
  const bool deskews = args.times.data != nullptr;
  check(deskews == (args.knots.data != nullptr), op, "times and knots must be given together",
        "one of them");
  args.poses = reals(in, "poses", deskews ? "[B, K, 3, 4]" : "[B, 3, 4]");
  if (deskews) args.num_knots = in['K'];
  args.time_strides[0] = in['N'];
  args.time_strides[1] = 1;
  args.order = in.indices("order", "[L]");
  args.age = reals(in, "age", "[B]");
  args.positions = in[args.order.given() ? 'L' : 'B'];
  check(args.positions <= kMostSweeps, op, "sweeps must be 64 at most", args.positions);
  check(args.rows() < kIndexLimit, op, "the rows of all sweeps must be fewer than 2^31",
        args.rows());
  return call(args,
              {{Element::kFloat, {args.rows(), args.columns()}},
               int32({1}),
               int32({in['B'] + 1, kSweepCounts})},
              &MergeSweepsArgs::points, &MergeSweepsArgs::num_points, &MergeSweepsArgs::counts);
}

Call plan_crop_points(CropPointsArgs args, Inputs& in) {
  const Shape& shape = in.find("points")->shape;
  const char* const layout = shape.size() == 2 ? "[N, C >= 3]" : "[B, N, C >= 3]";
  in.data<float>("points", layout);
  args.points = shape.size() == 2 ? in.packed("points", layout, nullptr, "lengths")
                                  : in.padded("points", layout, "lengths");
  if (args.finite_columns == 0) args.finite_columns = in['C'];
  return call(args, {{Element::kFloat, shape}, int32({in['B']}), int32({in['B'] + 1, kCropCounts})},
              &CropPointsArgs::out, &CropPointsArgs::num_points, &CropPointsArgs::counts);
}

Call plan_unpack_points(UnpackPointsArgs args, Inputs& in) {
  const bool single = in.find("data")->shape.size() == 1;
  if (single) in.set('S', 1);
  args.data = in.data<uint8_t>("data", single ? "[T]" : "[S, T]");
  in.set('F', args.columns);
  args.shift = in.data<double>("shift", "[F]");
  args.scale = in.data<double>("scale", "[F]");
  args.clouds = in['S'];
  args.cloud_stride = in['T'];
  args.points = in['T'] / args.point_step;
  Shape shape{args.points, args.columns};
  if (!single) shape.insert(shape.begin(), args.clouds);
  check(args.points == 0 || args.clouds < kIndexLimit / args.points, in.op(),
        "the points of all clouds must be fewer than 2^31", shape);
  return call(args, {{Element::kFloat, shape}}, &UnpackPointsArgs::out);
}

}  // namespace

Planner bind_ray_visibility(const Attributes& attributes) {
  const char* op = "RayVisibility";
  RayVisibilityArgs args;
  args.grid = voxel_grid(op, attributes);
  return planner(op, attributes,
                 {"points", "origins", "origin_index?", "batch_offsets?", "num_valid?",
                  "ray_flags?", "blockers?"},
                 args, plan_ray_visibility);
}

Planner bind_merge_sweeps(const Attributes& attributes) {
  const char* op = "MergeSweeps";
  MergeSweepsArgs args;
  args.boxes = boxes(op, attributes, "drop_boxes", kMostBoxes);
  return planner(op, attributes,
                 {"points", "poses", "lengths?", "order?", "age?", "times?", "knots?"}, args,
                 plan_merge_sweeps);
}

Planner bind_crop_points(const Attributes& attributes) {
  const char* op = "CropPoints";
  CropPointsArgs args;
  args.boxes = boxes(op, attributes, "drop_boxes", kMostBoxes);
  args.range = boxes(op, attributes, "keep_range", 1);
  // 0: all columns, however many the points have.
  args.finite_columns = choice<int>(op, attributes, "finite", {{"xyz", 3}, {"all", 0}});
  return planner(op, attributes, {"points", "lengths?"}, args, plan_crop_points);
}

Planner bind_unpack_points(const Attributes& attributes) {
  const char* op = "UnpackPoints";
  UnpackPointsArgs args;
  args.point_step = limit(op, attributes, "point_step", 1);
  const std::vector<int64_t> offsets = attributes.integers("offsets");
  const std::vector<std::string> types = attributes.words("types");
  check(!types.empty() && types.size() <= kMostFields && offsets.size() == types.size(), op,
        "types must be of 1 to 64 fields, and offsets as many", types.size());
  args.columns = static_cast<int64_t>(types.size());
  for (size_t c = 0; c < types.size(); ++c) {
    const std::string& type = types[c];
    check(type.size() == 2 && std::string_view("i1u1i2u2i4u4f4f8").find(type) % 2 == 0, op,
          "types must be of i1, u1, i2, u2, i4, u4, f4 and f8", type);
    const int bytes = type[1] - '0';
    check(offsets[c] >= 0 && offsets[c] <= args.point_step - bytes, op,
          "offsets must leave every field within point_step", offsets);
    args.fields[c] = {static_cast<int32_t>(offsets[c]), type[0], static_cast<uint8_t>(bytes)};
  }
  return planner(op, attributes, {"data", "shift?", "scale?"}, args, plan_unpack_points);
}

}  // namespace torchvox::bind
