// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/rays/voxels.h"

#include "csrc/kernels/rays/regions.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/rays/checks.h"

namespace torchvox {
namespace {

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

  const RayTensors tensors(points, origins, origin_index, {}, num_valid, ray_flags);
  tensors.fill(args.rays);
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

  const RayTensors tensors(points, origins, origin_index, {}, num_valid, ray_flags);
  tensors.fill(args.rays);
  args.max_out = max_out.expect_int();
  run(op, points, args);
  return {keys, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("ray_voxels", ray_voxels, not_differentiable());
  ops.add("ray_regions", ray_regions, not_differentiable());
}

}  // namespace
}  // namespace torchvox
