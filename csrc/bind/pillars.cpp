// SPDX-License-Identifier: Apache-2.0
#include "csrc/bind/inputs.h"
#include "csrc/kernels/pillars/encode/encode.h"
#include "csrc/kernels/pillars/scatter.h"

namespace torchvox::bind {
namespace {

constexpr const char* kOp = "PillarEncode";

// The canvas is [B, ny, nx, O]. Without the attribute B follows from the shape of the counts of the
// voxel map, [B + 1, 8], which are not read.
Call plan_pillar_encode(PillarEncodeArgs args, Inputs& in) {
  PillarMap& map = args.map;
  map.points = in.floats("points", "[N, C >= 3]", &map.dtype);
  map.rows.indices = in.data<int32_t>("indices", "[V, 4]");
  map.num_points = in.data<int32_t>("num_points", "[V]");
  map.point_voxel = in.data<int32_t>("point_voxel", "[N]");
  map.point_slot = in.data<int32_t>("point_slot", "[N]");
  map.count = in['N'];
  map.columns = map.row_stride = in['C'];
  map.rows.rows = in['V'];
  in.set('D', map.decorated());
  args.weight = in.floats("weight", "[O >= 1, D]", &args.weight_dtype);
  args.bias = in.floats_of("bias", "[O]", args.weight_dtype);
  args.out_dtype = args.weight_dtype;
  args.outputs = in['O'];
  const bool counted = in.data<int32_t>("counts", "[B + 1, 8]") != nullptr;
  check(counted == (map.rows.batches < 0), kOp, "batch_size or counts must be given", "not one");
  if (counted) map.rows.batches = in['B'];
  return call(
      args,
      {{element_of(args.weight_dtype), {map.rows.batches, map.rows.ny, map.rows.nx, args.outputs}}},
      &PillarEncodeArgs::canvas);
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
  map.legacy = attributes.flag("legacy");
  map.padded =
      choice<bool>(kOp, attributes, "pad_semantics", {{"reference", true}, {"none", false}});
  map.rows.batches = attributes.has("batch_size") ? limit(kOp, attributes, "batch_size", 0) : -1;
  return planner(
      kOp, attributes,
      {"points", "indices", "num_points", "point_voxel", "point_slot", "weight", "bias", "counts?"},
      args, plan_pillar_encode);
}

}  // namespace torchvox::bind
