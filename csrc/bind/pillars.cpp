// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"
#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/scatter.h"
#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox::bind {
namespace {

constexpr const char* kOp = "PillarEncode";

// The canvas is [B, ny, nx, O]. A negative `batches` is that of the last input, the counts of the
// voxel map: [B + 1, 8], of which the shape alone is read.
Call plan_pillar_encode(PillarEncodeArgs args, int64_t batches, const Tensors& tensors,
                        std::span<const View> inputs) {
  tensors.check_count(inputs, batches < 0);
  const auto at = [&](const char* name) -> const View& { return *tensors.find(inputs, name); };
  const View &points = at("points"), &indices = at("indices"), &weight = at("weight");
  check(points.shape.size() == 2 && points.size(1) >= 3 && points.size(0) < kIndexLimit, kOp,
        "points must be [N, C] with C >= 3", points.shape);
  check_shape(kOp, "indices", indices, {-1, 4}, "[V, 4]");
  const int64_t count = points.size(0), rows = indices.size(0);
  check(rows < kIndexLimit, kOp, "indices must have V < 2^31 rows", rows);
  PillarMap& map = args.map;
  map.points = points.data;
  map.dtype = float_type(kOp, "points", points);
  map.count = count;
  map.columns = map.row_stride = points.size(1);
  check_shape(kOp, "num_points", at("num_points"), {rows}, "[V]");
  check_shape(kOp, "point_voxel", at("point_voxel"), {count}, "[N]");
  check_shape(kOp, "point_slot", at("point_slot"), {count}, "[N]");
  check_shape(kOp, "weight", weight, {-1, map.decorated()}, "[O, C + 3 + center_axes]");
  check_shape(kOp, "bias", at("bias"), {weight.size(0)}, "[O]");
  check(at("bias").element == weight.element, kOp, "bias must have the type of weight",
        "element type " + std::to_string(int(at("bias").element)));
  map.num_points = int32_data(kOp, "num_points", at("num_points"));
  map.point_voxel = int32_data(kOp, "point_voxel", at("point_voxel"));
  map.point_slot = int32_data(kOp, "point_slot", at("point_slot"));
  map.rows.indices = int32_data(kOp, "indices", indices);
  map.rows.rows = rows;
  if (batches < 0) {
    const View& counts = inputs.back();
    check_shape(kOp, "counts", counts, {-1, kVoxelCounts}, "[B + 1, 8]");
    check(counts.size(0) >= 1, kOp, "counts must be [B + 1, 8]", counts.shape);
    batches = counts.size(0) - 1;
  }
  map.rows.batches = batches;
  args.weight = weight.data;
  args.bias = at("bias").data;
  args.weight_dtype = args.out_dtype = float_type(kOp, "weight", weight);
  args.outputs = weight.size(0);
  return {{{weight.element, {batches, map.rows.ny, map.rows.nx, args.outputs}}},
          [args](std::span<void* const> out, const Host& host) {
            PillarEncodeArgs own = args;
            own.canvas = out[0];
            run(own, host);
          }};
}

// The canvas is [B, ny, nx, C].
Call plan_pillar_scatter(PillarScatterArgs args, Inputs& in) {
  args.feats = in.floats("feats", "[V, C]", &args.dtype);
  args.rows.indices = in.data<int32_t>("indices", "[V, 4]");
  args.rows.rows = in['V'];
  args.channels = in['C'];
  return {{{element_of(args.dtype), {args.rows.batches, args.rows.ny, args.rows.nx, in['C']}}},
          [args](std::span<void* const> out, const Host& host) {
            PillarScatterArgs own = args;
            own.canvas = out[0];
            if (own.rows.cells() * own.channels > 0) run(own, host);
          }};
}

}  // namespace

Planner bind_pillar_scatter(const Attributes& attributes) {
  const char* op = "PillarScatter";
  PillarScatterArgs args;
  const std::vector<int64_t> size = attributes.integers("size");
  check(size.size() == 2 && std::min(size[0], size[1]) >= 1 &&
            std::max(size[0], size[1]) < kIndexLimit,
        op, "size must be (nx, ny), both in [1, 2^31)", size);
  args.rows.batches = limit(op, attributes, "batch_size", 0);
  args.rows.nx = size[0];
  args.rows.ny = size[1];
  check(static_cast<double>(size[0]) * static_cast<double>(size[1]) *
                static_cast<double>(args.rows.batches) <
            0x1p60,
        op, "the canvas must have fewer than 2^60 cells", size);
  return planner(op, attributes, {"feats", "indices"}, args, plan_pillar_scatter);
}

Planner bind_pillar_encode(const Attributes& attributes) {
  PillarEncodeArgs args;
  PillarMap& map = args.map;
  map.grid = voxel_grid(kOp, attributes);
  check(map.grid.cells[2] == 1, kOp, "the grid must have one cell along z", map.grid.cells[2]);
  map.rows.nx = map.grid.cells[0];
  map.rows.ny = map.grid.cells[1];
  map.max_points = limit(kOp, attributes, "max_points");
  map.center_axes = static_cast<int>(attributes.integer("center_axes"));
  check(map.center_axes == 2 || map.center_axes == 3, kOp, "center_axes must be 2 or 3",
        map.center_axes);
  map.legacy = attributes.integer("legacy") != 0;
  map.padded =
      choice<bool>(kOp, attributes, "pad_semantics", {{"reference", true}, {"none", false}});
  const int64_t batches =
      attributes.has("batch_size") ? limit(kOp, attributes, "batch_size", 0) : -1;
  const Tensors tensors(
      kOp, attributes,
      {"points", "indices", "num_points", "point_voxel", "point_slot", "weight", "bias"});
  return [args, batches, tensors](std::span<const View> inputs) {
    return plan_pillar_encode(args, batches, tensors, inputs);
  };
}

}  // namespace torchvox::bind
