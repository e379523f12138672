// SPDX-License-Identifier: Apache-2.0
//
// Ops that read a map: occupancy_query, occupancy_crop, occupancy_raycast, occupancy_extract.
#include <limits>

#include "csrc/kernels/occupancy/read.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/occupancy/checks.h"
#include "csrc/ops/rays/checks.h"
#include "csrc/ops/voxel/args.h"

namespace torchvox {
namespace {

void parse_lookup(const char* op, OccupancyLookup& lookup, at::TensorList state, double voxel_size,
                  c10::ArrayRef<double> map_origin, double threshold, std::optional<double> fill) {
  lookup.state = parse_state(op, state);
  lookup.frame = parse_map_rays(op, voxel_size, map_origin);
  lookup.threshold = parse_threshold(op, threshold);
  lookup.fill = quiet(static_cast<float>(fill.value_or(std::numeric_limits<double>::quiet_NaN())));
}

std::tuple<Tensor, Tensor> occupancy_query(at::TensorList state, const Tensor& points,
                                           double voxel_size, c10::ArrayRef<double> map_origin,
                                           const OptionalTensor& num_valid, double threshold,
                                           std::optional<double> fill) {
  const char* op = "occupancy_query";
  OccupancyQueryArgs args;
  parse_lookup(op, args, state, voxel_size, map_origin, threshold, fill);
  Inputs in(op);
  add_points(in, points);
  check_device(op, "state", state[kTable], points);
  add_batch(in, {}, num_valid);
  const Tensor logodds = output(args.logodds, {in["N"]}, points);
  const Tensor label = output(args.label, {in["N"]}, points);
  if (points.is_meta()) return {logodds, label};
  const Clouds packed(points, {}, num_valid);
  args.points = packed.view;
  run(op, points, args);
  return {logodds, label};
}

std::tuple<Tensor, Tensor> occupancy_crop(at::TensorList state, double voxel_size,
                                          c10::ArrayRef<double> map_origin,
                                          c10::ArrayRef<double> cell_size,
                                          c10::ArrayRef<double> point_cloud_range,
                                          const OptionalTensor& poses, double threshold,
                                          std::optional<double> fill) {
  const char* op = "occupancy_crop";
  OccupancyCropArgs args;
  parse_lookup(op, args, state, voxel_size, map_origin, threshold, fill);
  args.grid = parse_voxel_grid(op, cell_size, point_cloud_range);
  Inputs in(op);
  if (poses) {
    in.add("poses", poses, Dtypes::kFloats, "[B, 3, 4]");
    check_device(op, "poses", *poses, "the state", state[kTable]);
  } else {
    in.add_size("B", 1);
  }
  check_keys(op, args.grid, in["B"]);
  const auto [nx, ny, nz] = args.grid.cells;
  const Tensor& beside = state[kTable];
  const Tensor logodds = output(args.logodds, {in["B"], nz, ny, nx}, beside);
  const Tensor label = output(args.label, {in["B"], nz, ny, nx}, beside);
  if (beside.is_meta()) return {logodds, label};
  Memory memory;
  args.crops = in["B"].expect_int();
  args.poses = memory.of(poses);
  if (poses) args.pose_type = dtype_of(poses->scalar_type());
  run(op, beside, args);
  return {logodds, label};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> occupancy_raycast(
    at::TensorList state, const Tensor& points, const Tensor& origins, double voxel_size,
    c10::ArrayRef<double> map_origin, const OptionalTensor& origin_index,
    const OptionalTensor& num_valid, double threshold, bool stop_unknown, double solid_angle) {
  const char* op = "occupancy_raycast";
  OccupancyRaycastArgs args;
  args.state = parse_state(op, state);
  Inputs in(op);
  add_rays(in, points, origins, origin_index, {}, num_valid, {});
  check_device(op, "state", state[kTable], points);
  args.rays = parse_map_rays(op, voxel_size, map_origin);
  args.threshold = parse_threshold(op, threshold);
  check_value(std::isfinite(solid_angle) && solid_angle >= 0, op,
              "solid_angle must be finite and >= 0", solid_angle);
  const c10::SymInt n = in["N"];
  const Tensor distance = output(args.distance, {n}, points);
  const Tensor unseen = output(args.unseen, {n}, points);
  const Tensor status = output(args.status, {n}, points);
  const Tensor indices = output(args.indices, {n, 4}, points);
  const Tensor unknown = output(args.unknown, {n}, points);
  if (points.is_meta()) return {distance, unseen, status, indices, unknown};
  const Clouds packed(points, {}, num_valid);
  Memory memory;
  put_rays(args.rays, memory, packed, origins, origin_index, {});
  args.stop_unknown = stop_unknown;
  args.solid_angle = solid_angle;
  run(op, points, args);
  return {distance, unseen, status, indices, unknown};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> occupancy_extract(at::TensorList state,
                                                                     c10::SymInt max_out,
                                                                     std::string_view select,
                                                                     double threshold) {
  const char* op = "occupancy_extract";
  OccupancyExtractArgs args;
  args.state = parse_state(op, state);
  check_count(op, "max_out", max_out);
  args.select = parse_choice<OccupancySelect>(op, "select", select,
                                              {{"occupied", OccupancySelect::kOccupied},
                                               {"free", OccupancySelect::kFree},
                                               {"observed", OccupancySelect::kObserved}});
  args.threshold = parse_threshold(op, threshold);
  const Tensor& beside = state[kTable];
  const Tensor logodds = output(args.logodds, {max_out}, beside);
  const Tensor mean = output(args.mean, {max_out, 3}, beside);
  const Tensor indices = output(args.indices, {max_out, 4}, beside);
  const Tensor num_samples = output(args.num_samples, {max_out}, beside);
  const Tensor counts = output(args.counts, {1, int64_t{kStateCounts}}, beside);
  if (!beside.is_meta()) {
    args.max_out = max_out.expect_int();
    run(op, beside, args);
  }
  return {logodds, mean, indices, num_samples, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("occupancy_query", occupancy_query, not_differentiable());
  ops.add("occupancy_crop", occupancy_crop, not_differentiable());
  ops.add("occupancy_raycast", occupancy_raycast, not_differentiable());
  ops.add("occupancy_extract", occupancy_extract, not_differentiable());
}

}  // namespace
}  // namespace torchvox
