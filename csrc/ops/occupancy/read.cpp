// SPDX-License-Identifier: Apache-2.0
//
// Ops that read a map: occupancy_query, occupancy_crop, occupancy_raycast, occupancy_extract.
#include <limits>

#include "csrc/kernels/occupancy/extract.h"
#include "csrc/kernels/occupancy/query.h"
#include "csrc/kernels/occupancy/raycast.h"
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
  check_packed_points(op, points);
  check_device(op, "state", state[kTable], points);
  check_batch(op, points, {}, num_valid);
  const Tensor logodds = empty_beside({points.sym_size(0)}, at::kFloat, points);
  const Tensor label = empty_beside({points.sym_size(0)}, at::kChar, points);
  if (!points.is_meta()) {
    const Clouds packed(points, {}, num_valid);
    args.points = packed.view;
    args.logodds = logodds.mutable_data_ptr<float>();
    args.label = label.mutable_data_ptr<int8_t>();
    run(op, points, args);
  }
  return {logodds, label};
}

std::tuple<Tensor, Tensor> occupancy_crop(at::TensorList state, double voxel_size,
                                          c10::ArrayRef<double> map_origin,
                                          c10::ArrayRef<double> cell_size,
                                          c10::ArrayRef<double> point_cloud_range,
                                          const OptionalTensor& poses_in, double threshold,
                                          std::optional<double> fill) {
  const char* op = "occupancy_crop";
  OccupancyCropArgs args;
  parse_lookup(op, args, state, voxel_size, map_origin, threshold, fill);
  args.grid = parse_voxel_grid(op, cell_size, point_cloud_range);
  c10::SymInt crops = 1;
  if (poses_in) {
    Inputs in(op);
    in.add("poses", *poses_in, Dtypes::kFloats, "[B, 3, 4]");
    check_device(op, "poses", *poses_in, "the state", state[kTable]);
    crops = poses_in->sym_size(0);
  }
  check_keys(op, args.grid, crops);
  const int32_t* const cells = args.grid.cells;
  const std::vector<c10::SymInt> shape{crops, cells[2], cells[1], cells[0]};
  const Tensor& beside = state[kTable];
  const Tensor logodds = empty_beside(shape, at::kFloat, beside);
  const Tensor label = empty_beside(shape, at::kChar, beside);
  if (!beside.is_meta()) {
    const OptionalTensor poses = contiguous(poses_in);
    args.crops = crops.expect_int();
    if (poses) {
      args.poses = poses->const_data_ptr();
      args.pose_type = dtype_of(poses->scalar_type());
    }
    args.logodds = logodds.mutable_data_ptr<float>();
    args.label = label.mutable_data_ptr<int8_t>();
    run(op, beside, args);
  }
  return {logodds, label};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> occupancy_raycast(
    at::TensorList state, const Tensor& points, const Tensor& origins, double voxel_size,
    c10::ArrayRef<double> map_origin, const OptionalTensor& origin_index,
    const OptionalTensor& num_valid, double threshold, bool stop_unknown, double solid_angle) {
  const char* op = "occupancy_raycast";
  OccupancyRaycastArgs args;
  args.state = parse_state(op, state);
  check_rays(op, points, origins, origin_index, {}, num_valid, {});
  check_device(op, "state", state[kTable], points);
  args.rays = parse_map_rays(op, voxel_size, map_origin);
  args.threshold = parse_threshold(op, threshold);
  check_value(std::isfinite(solid_angle) && solid_angle >= 0, op,
              "solid_angle must be finite and >= 0", solid_angle);
  const c10::SymInt n = points.sym_size(0);
  const Tensor distance = empty_beside({n}, at::kFloat, points);
  const Tensor unseen = empty_beside({n}, at::kFloat, points);
  const Tensor status = empty_beside({n}, at::kChar, points);
  const Tensor indices = empty_beside({n, 4}, at::kInt, points);
  const Tensor unknown = empty_beside({n}, at::kInt, points);
  if (!points.is_meta()) {
    const RayTensors tensors(points, origins, origin_index, {}, num_valid, {});
    tensors.fill(args.rays);
    args.stop_unknown = stop_unknown;
    args.solid_angle = solid_angle;
    args.distance = distance.mutable_data_ptr<float>();
    args.unseen = unseen.mutable_data_ptr<float>();
    args.status = status.mutable_data_ptr<int8_t>();
    args.indices = indices.mutable_data_ptr<int32_t>();
    args.unknown = unknown.mutable_data_ptr<int32_t>();
    run(op, points, args);
  }
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
  const Tensor logodds = empty_beside({max_out}, at::kFloat, beside);
  const Tensor mean = empty_beside({max_out, 3}, at::kFloat, beside);
  const Tensor indices = empty_beside({max_out, 4}, at::kInt, beside);
  const Tensor num_samples = empty_beside({max_out}, at::kInt, beside);
  const Tensor counts = empty_beside({1, int64_t{kStateCounts}}, at::kLong, beside);
  if (!beside.is_meta()) {
    args.max_out = max_out.expect_int();
    args.logodds = logodds.mutable_data_ptr<float>();
    args.mean = mean.mutable_data_ptr<float>();
    args.indices = indices.mutable_data_ptr<int32_t>();
    args.num_samples = num_samples.mutable_data_ptr<int32_t>();
    args.counts = counts.mutable_data_ptr<int64_t>();
    run(op, beside, args);
  }
  return {logodds, mean, indices, num_samples, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("occupancy_query", occupancy_query);
  ops.add("occupancy_crop", occupancy_crop);
  ops.add("occupancy_raycast", occupancy_raycast);
  ops.add("occupancy_extract", occupancy_extract);
  for (const char* op :
       {"occupancy_query", "occupancy_crop", "occupancy_raycast", "occupancy_extract"}) {
    ops.autograd(op, not_differentiable());
  }
}

}  // namespace
}  // namespace torchvox
