// SPDX-License-Identifier: Apache-2.0
//
// Images from above.
#include <array>
#include <charconv>

#include "csrc/kernels/bev/grid.h"
#include "csrc/kernels/bev/max_height.h"
#include "csrc/kernels/bev/rasterize.h"
#include "csrc/kernels/core/portable_double.h"
#include "csrc/ops/core/op.h"

namespace torchvox {
namespace {

BevGrid parse_grid(const char* op, c10::ArrayRef<double> range, c10::ArrayRef<int64_t> size,
                   std::string_view orientation) {
  check_range(op, range);
  check_value(size.size() == 2, op, "size must be (nx, ny)", size);
  // Above 2^24 cells fp32 cannot name them all.
  check_value(size[0] >= 1 && size[1] >= 1 && size[0] <= (1 << 24) && size[1] <= (1 << 24), op,
              "size must be (nx, ny) with each in [1, 2^24]", size);
  BevGrid grid;
  for (int axis = 0; axis < 3; ++axis) {
    grid.lower[axis] = static_cast<float>(range[axis]);
    grid.upper[axis] = static_cast<float>(range[axis + 3]);
  }
  for (int axis = 0; axis < 2; ++axis) {
    grid.resolution[axis] = (grid.upper[axis] - grid.lower[axis]) / static_cast<float>(size[axis]);
    check_value(std::isfinite(grid.resolution[axis]) && grid.resolution[axis] > 0.f, op,
                "point_cloud_range must give cells of a positive, finite float32 size", range,
                " in ", size, " cells");
  }
  check_value(std::isfinite(grid.upper[2] - grid.lower[2]), op,
              "point_cloud_range must have a finite float32 height", range);
  grid.nx = size[0];
  grid.ny = size[1];
  grid.orientation = parse_choice<BevOrientation>(op, "orientation", orientation,
                                                  {{"grid", BevOrientation::kGrid},
                                                   {"image", BevOrientation::kImage},
                                                   {"north_up", BevOrientation::kNorthUp}});
  return grid;
}

int64_t rows_of(const BevGrid& grid) {
  return grid.orientation == BevOrientation::kImage ? grid.nx : grid.ny;
}
int64_t columns_of(const BevGrid& grid) {
  return grid.orientation == BevOrientation::kImage ? grid.ny : grid.nx;
}

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

using Channels = torch::List<std::string>;

struct ChannelName {
  const char* name;
  BevChannel channel;
};
constexpr std::array<ChannelName, 10> kPlainChannels = {{
    {"height_max", BevChannel::kHeightMax},
    {"height_min", BevChannel::kHeightMin},
    {"height_mean", BevChannel::kHeightMean},
    {"height_range", BevChannel::kHeightRange},
    {"height_norm", BevChannel::kHeightNorm},
    {"intensity_top", BevChannel::kIntensityTop},
    {"intensity_mean", BevChannel::kIntensityMean},
    {"intensity_max", BevChannel::kIntensityMax},
    {"count", BevChannel::kCount},
    {"density", BevChannel::kDensity},
}};

bool is_intensity(BevChannel channel) {
  return channel == BevChannel::kIntensityTop || channel == BevChannel::kIntensityMean ||
      channel == BevChannel::kIntensityMax;
}

void append_plane(const char* op, BevPlanes& planes, const BevPlane& plane) {
  static_assert(kBevMaxPlanes == 256);
  check_value(planes.count < kBevMaxPlanes, op, "channels must give at most 256 planes", "more");
  planes.plane[planes.count++] = plane;
}

// "slices:K" or "occupancy:K": K planes over one slicing of the height range.
void append_slicing(const char* op, BevPlanes& planes, const std::string& name) {
  const std::string expected =
      "channels must be of height_max, height_min, height_mean, height_range, height_norm, "
      "intensity_top, intensity_mean, intensity_max, count, density, occupancy:K and slices:K";
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  check_value(colon != std::string::npos && (kind == "occupancy" || kind == "slices"), op, expected,
              "'", name, "'");
  int slices = 0;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + colon + 1, end, slices);
  check_value(error == std::errc() && stop == end && slices >= 1 && slices <= kBevMaxPlanes, op,
              "channels must have K of " + kind + ":K in [1, 256]", "'", name, "'");
  const bool occupancy = kind == "occupancy";
  BevPlane plane;
  plane.channel = occupancy ? BevChannel::kOccupancy : BevChannel::kSlices;
  plane.slices = static_cast<int16_t>(slices);
  plane.table_row = static_cast<int16_t>(planes.sliced_rows);
  planes.sliced_rows += occupancy ? (slices + 31) / 32 : slices;
  for (int k = 0; k < slices; ++k) {
    plane.slice = static_cast<int16_t>(k);
    append_plane(op, planes, plane);
  }
}

BevPlanes parse_channels(const char* op, const Channels& channels) {
  BevPlanes planes;
  for (const auto& entry : channels) {
    const std::string name = entry;
    bool plain = false;
    for (const ChannelName& known : kPlainChannels) {
      if (name != known.name) continue;
      BevPlane plane;
      plane.channel = known.channel;
      append_plane(op, planes, plane);
      plain = true;
    }
    if (!plain) append_slicing(op, planes, name);
  }
  check_value(planes.count > 0, op, "channels must name at least one plane", "none");
  return planes;
}

bool has_channel(const BevPlanes& planes, BevChannel channel) {
  for (int p = 0; p < planes.count; ++p) {
    if (planes.plane[p].channel == channel) return true;
  }
  return false;
}

// Everything that is known before data is read; the same for the CPU, CUDA and Meta keys.
struct RasterizePlan {
  BevGrid grid;
  BevPlanes planes;
  bool ordered_mean = false;  // intensity_mean sums in input order
  c10::SymInt batches;
  c10::SymDimVector image;  // [B, planes, H, W]
};

RasterizePlan plan_rasterize(const char* op, const Tensor& points, c10::ArrayRef<double> range,
                             c10::ArrayRef<int64_t> size, const Channels& channels,
                             const OptionalTensor& features, const OptionalTensor& batch_offsets,
                             const OptionalTensor& num_valid, std::string_view orientation) {
  Inputs in(op);
  add_points(in, points);
  RasterizePlan plan;
  plan.grid = parse_grid(op, range, size, orientation);
  plan.planes = parse_channels(op, channels);
  plan.batches = add_batch(in, batch_offsets, num_valid);
  plan.image = {plan.batches, plan.planes.count, rows_of(plan.grid), columns_of(plan.grid)};
  plan.ordered_mean = has_channel(plan.planes, BevChannel::kIntensityMean);
  if (plan.ordered_mean) {
    check_below(plan.batches * plan.grid.cells(), (int64_t{1} << 31) - 1, op,
                "intensity_mean needs fewer than 2^31 - 1 cells in the batch",
                plan.batches * plan.grid.cells());
  }
  in.add("features", features, Dtypes::kFloats, "[N] or [N, 1]");
  for (int p = 0; p < plan.planes.count; ++p) {
    if (features || !is_intensity(plan.planes.plane[p].channel)) continue;
    check_size(in["C"].sym_ge(4), op,
               "points must be [N, C] with C >= 4 for an intensity channel without features",
               points.sym_sizes());
  }
  return plan;
}

BevIntensity intensity_of(const OptionalTensor& features, const Clouds& packed) {
  BevIntensity intensity;
  if (features) {
    intensity.data = features->const_data_ptr();
    intensity.dtype = dtype_of(features->scalar_type());
    intensity.stride = features->stride(0);
  } else if (packed.view.columns > 3) {
    const auto* base = static_cast<const char*>(packed.view.data);
    intensity.data = base + 3 * packed.points.element_size();
    intensity.dtype = packed.view.dtype;
    intensity.stride = packed.view.row_stride;
  }
  return intensity;
}

std::tuple<Tensor, Tensor> bev_rasterize(const Tensor& points, c10::ArrayRef<double> range,
                                         at::IntArrayRef size, Channels channels,
                                         const OptionalTensor& features,
                                         const OptionalTensor& batch_offsets,
                                         const OptionalTensor& num_valid,
                                         std::string_view orientation, double fill,
                                         int64_t density_base) {
  const char* op = "bev_rasterize";
  const RasterizePlan plan = plan_rasterize(op, points, range, size, channels, features,
                                            batch_offsets, num_valid, orientation);
  check_value(density_base >= 2 && density_base <= kBevMaxDensityBase, op,
              "density_base must be in [2, 512]", density_base);
  BevRasterizeArgs args;
  Tensor image = output(args.image, plan.image, points);
  Tensor counts = output(args.counts, {plan.batches + 1, int64_t{kBevCounts}}, points);
  if (points.is_meta()) return {image, counts};

  const Clouds packed(points, batch_offsets, num_valid);
  Tensor cell_offsets, cell_points;
  if (plan.ordered_mean) {
    BevCellsArgs cells;
    const Tensor point_cell = output(cells.point_cell, {packed.view.rows}, points);
    cells.points = packed.view;
    cells.grid = plan.grid;
    run(op, points, cells);
    static const auto list_points =
        typed_op<std::tuple<Tensor, Tensor>(const Tensor&, c10::SymInt)>("torchvox::voxel_csr");
    std::tie(cell_offsets, cell_points) =
        list_points.call(point_cell, packed.view.clouds * plan.grid.cells());
  }
  args.points = packed.view;
  args.intensity = intensity_of(features, packed);
  args.grid = plan.grid;
  args.planes = plan.planes;
  args.density_base = static_cast<int>(density_base);
  for (int n = 0; n < args.density_base; ++n) {
    const double share = portable::log(n + 1.) / portable::log(static_cast<double>(density_base));
    args.density[n] = static_cast<float>(std::min(1., share));
  }
  // The largest power of two at which the whole range is at most 2^31 steps high.
  int exponent = 0;
  std::frexp(static_cast<double>(plan.grid.upper[2]) - static_cast<double>(plan.grid.lower[2]),
             &exponent);
  args.height_steps = std::ldexp(1., 31 - exponent);
  args.fill = static_cast<float>(fill);
  if (plan.ordered_mean) {
    args.cell_offsets = cell_offsets.const_data_ptr<int32_t>();
    args.cell_points = cell_points.const_data_ptr<int32_t>();
  }
  run(op, points, args);
  return {image, counts};
}

// (grad_points [N, C], grad_features of the shape of features, or [0] when there are none)
std::tuple<Tensor, Tensor> bev_rasterize_backward(const Tensor& grad_image, const Tensor& points,
                                                  c10::ArrayRef<double> range, at::IntArrayRef size,
                                                  Channels channels, const OptionalTensor& features,
                                                  const OptionalTensor& batch_offsets,
                                                  const OptionalTensor& num_valid,
                                                  std::string_view orientation) {
  const char* op = "_bev_rasterize_backward";
  const RasterizePlan plan = plan_rasterize(op, points, range, size, channels, features,
                                            batch_offsets, num_valid, orientation);
  Inputs in(op);
  const char* letters[] = {"B", "planes", "H", "W"};
  for (int axis = 0; axis < 4; ++axis) in.add_size(letters[axis], plan.image[axis], "the image");
  in.add("points", points, Dtypes::kFloats, "[N, C]");
  in.add("grad_image", grad_image, Dtypes::kFloat32, "[B, planes, H, W]");
  BevRasterizeBackwardArgs args;
  const Tensor grad_points = output_as(args.grad_points, points);
  const Tensor grad_features = features ? output_as(args.grad_features, *features)
                                        : empty_beside({0}, points.scalar_type(), points);
  if (points.is_meta()) return {grad_points, grad_features};

  const Clouds packed(points, batch_offsets, num_valid);
  Memory memory;
  args.points = packed.view;
  args.grid = plan.grid;
  args.planes = plan.planes;
  args.grad_image = memory.of<float>(grad_image);
  if (features) args.features_dtype = dtype_of(features->scalar_type());
  run(op, points, args);
  return {grad_points, grad_features};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("bev_max_height", max_height<false>);
  ops.add("bev_max_height_with_index", max_height<true>);
  // A cell's gradient goes to the z of its top point, which only the indexed op returns.
  ops.differentiable("bev_max_height", {"_bev_max_height_backward", "bev_max_height_with_index"});
  ops.differentiable("bev_max_height_with_index", {"_bev_max_height_backward"});
  ops.add("_bev_max_height_backward", bev_max_height_backward, no_second_derivative());
  ops.add("bev_rasterize", bev_rasterize);
  // The gradient finds each cell's top point and count again from the points: cheaper to compute
  // than to keep.
  ops.differentiable("bev_rasterize", {"_bev_rasterize_backward"});
  ops.add("_bev_rasterize_backward", bev_rasterize_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
