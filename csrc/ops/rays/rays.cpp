// SPDX-License-Identifier: Apache-2.0
//
// transform_points, and the ops over rays without a state: ray_visibility, ray_voxels, ray_regions.
#include "csrc/kernels/rays/rays.h"
#include "csrc/kernels/rays/transform_points.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/rays/checks.h"
#include "csrc/ops/voxel/args.h"

namespace torchvox {
namespace {

Tensor transform_points(const Tensor& points, const Tensor& poses,
                        const OptionalTensor& pose_index) {
  const char* op = "transform_points";
  Inputs in(op);
  add_points(in, points);
  in.add("poses", poses, Dtypes::kFloats, "[O, 3, 4]");
  in.add("pose_index", pose_index, Dtypes::kIndices, "[N]");
  check_size(pose_index ? c10::SymBool(true) : in["O"].sym_eq(1), op,
             "poses must be one where pose_index is None", poses.sym_sizes());
  TransformPointsArgs args;
  const Tensor out = output(args.out, {in["N"], 3}, points);
  if (points.is_meta()) return out;

  const Clouds packed(points, {}, {});
  Memory memory;
  args.points = packed.view;
  args.poses = memory.of(poses);
  args.pose_type = dtype_of(poses.scalar_type());
  args.pose_rows = poses.size(0);
  args.pose_index = memory.indices(pose_index);
  run(op, points, args);
  return out;
}

std::tuple<Tensor, Tensor, Tensor> ray_visibility(
    const Tensor& points, const Tensor& origins, c10::ArrayRef<double> voxel_size,
    c10::ArrayRef<double> point_cloud_range, const OptionalTensor& origin_index,
    const OptionalTensor& batch_offsets, const OptionalTensor& num_valid,
    const OptionalTensor& ray_flags, const OptionalTensor& blockers) {
  const char* op = "ray_visibility";
  Inputs in(op);
  add_rays(in, points, origins, origin_index, batch_offsets, num_valid, ray_flags);
  RayVisibilityArgs args;
  args.grid = parse_voxel_grid(op, voxel_size, point_cloud_range);
  check_keys(op, args.grid, in["B"]);
  const auto [nx, ny, nz] = args.grid.cells;
  in.add_size("nz", nz);
  in.add_size("ny", ny);
  in.add_size("nx", nx);
  in.add("blockers", blockers, Dtypes::kBytes, "[B, nz, ny, nx]");
  const Tensor visibility = output(args.visibility, {in["B"], nz, ny, nx}, points);
  const Tensor reached = output(args.reached, {in["N"]}, points);
  const Tensor counts = output(args.counts, {in["B"] + 1, int64_t{kVisibilityCounts}}, points);
  if (points.is_meta()) return {visibility, reached, counts};
  const Clouds packed(points, batch_offsets, num_valid);
  Memory memory;
  put_rays(args, memory, packed, origins, origin_index, ray_flags);
  args.blockers = static_cast<const uint8_t*>(memory.of(blockers));
  run(op, points, args);
  return {visibility, reached, counts};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> ray_voxels(
    const Tensor& points, const Tensor& origins, double voxel_size,
    c10::ArrayRef<double> map_origin, c10::SymInt max_out, const OptionalTensor& origin_index,
    const OptionalTensor& num_valid, const OptionalTensor& ray_flags,
    std::optional<c10::ArrayRef<double>> point_cloud_range, double min_range, double max_range,
    std::string_view long_rays, bool reverse) {
  const char* op = "ray_voxels";
  Inputs in(op);
  add_rays(in, points, origins, origin_index, {}, num_valid, ray_flags);
  RayVoxelsArgs args;
  args.rays = parse_map_rays(op, voxel_size, map_origin, point_cloud_range, min_range, max_range,
                             long_rays);
  check_count(op, "max_out", max_out);
  const Tensor indices = output(args.indices, {max_out, 4}, points);
  const Tensor ray = output(args.ray, {max_out}, points);
  const Tensor span = output(args.span, {max_out, 2}, points);
  const Tensor offsets = output(args.offsets, {in["N"] + 1}, points);
  const Tensor counts = output(args.counts, {1, int64_t{kRayCounts}}, points);
  if (points.is_meta()) return {indices, ray, span, offsets, counts};
  const Clouds packed(points, {}, num_valid);
  Memory memory;
  put_rays(args.rays, memory, packed, origins, origin_index, ray_flags);
  args.reverse = reverse;
  args.max_out = max_out.expect_int();
  run(op, points, args);
  return {indices, ray, span, offsets, counts};
}

std::tuple<Tensor, Tensor> ray_regions(const Tensor& points, const Tensor& origins,
                                       double voxel_size, c10::ArrayRef<double> map_origin,
                                       c10::SymInt max_out, const OptionalTensor& origin_index,
                                       const OptionalTensor& num_valid,
                                       const OptionalTensor& ray_flags,
                                       std::optional<c10::ArrayRef<double>> point_cloud_range,
                                       double min_range, double max_range,
                                       std::string_view long_rays) {
  const char* op = "ray_regions";
  Inputs in(op);
  add_rays(in, points, origins, origin_index, {}, num_valid, ray_flags);
  RayRegionsArgs args;
  args.rays = parse_map_rays(op, voxel_size, map_origin, point_cloud_range, min_range, max_range,
                             long_rays);
  check_count(op, "max_out", max_out);
  const Tensor keys = output(args.keys, {max_out}, points);
  const Tensor counts = output(args.counts, {1, int64_t{kRayCounts}}, points);
  if (points.is_meta()) return {keys, counts};
  const Clouds packed(points, {}, num_valid);
  Memory memory;
  put_rays(args.rays, memory, packed, origins, origin_index, ray_flags);
  args.max_out = max_out.expect_int();
  run(op, points, args);
  return {keys, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("transform_points", transform_points, inference_only());
  ops.add("ray_visibility", ray_visibility, not_differentiable());
  ops.add("ray_voxels", ray_voxels, not_differentiable());
  ops.add("ray_regions", ray_regions, not_differentiable());
}

}  // namespace
}  // namespace torchvox
