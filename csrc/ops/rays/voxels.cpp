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
  check_rays(op, points, origins, origin_index, {}, num_valid, ray_flags);
  RayVoxelsArgs args;
  args.rays = parse_map_rays(op, voxel_size, map_origin, point_cloud_range, min_range, max_range,
                             long_rays);
  check_count(op, "max_out", max_out);
  const Tensor indices = empty_beside({max_out, 4}, at::kInt, points);
  const Tensor ray = empty_beside({max_out}, at::kInt, points);
  const Tensor span = empty_beside({max_out, 2}, at::kDouble, points);
  const Tensor offsets = empty_beside({points.sym_size(0) + 1}, at::kLong, points);
  const Tensor counts = empty_beside({1, int64_t{kRayCounts}}, at::kLong, points);
  if (!points.is_meta()) {
    const RayTensors tensors(points, origins, origin_index, {}, num_valid, ray_flags);
    tensors.fill(args.rays);
    args.reverse = reverse;
    args.max_out = max_out.expect_int();
    args.indices = indices.mutable_data_ptr<int32_t>();
    args.ray = ray.mutable_data_ptr<int32_t>();
    args.span = span.mutable_data_ptr<double>();
    args.offsets = offsets.mutable_data_ptr<int64_t>();
    args.counts = counts.mutable_data_ptr<int64_t>();
    run(op, points, args);
  }
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
  check_rays(op, points, origins, origin_index, {}, num_valid, ray_flags);
  RayRegionsArgs args;
  args.rays = parse_map_rays(op, voxel_size, map_origin, point_cloud_range, min_range, max_range,
                             long_rays);
  check_count(op, "max_out", max_out);
  const Tensor keys = empty_beside({max_out}, at::kLong, points);
  const Tensor counts = empty_beside({1, int64_t{kRayCounts}}, at::kLong, points);
  if (!points.is_meta()) {
    const RayTensors tensors(points, origins, origin_index, {}, num_valid, ray_flags);
    tensors.fill(args.rays);
    args.max_out = max_out.expect_int();
    args.keys = keys.mutable_data_ptr<int64_t>();
    args.counts = counts.mutable_data_ptr<int64_t>();
    run(op, points, args);
  }
  return {keys, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("ray_voxels", ray_voxels);
  ops.add("ray_regions", ray_regions);
  for (const char* op : {"ray_voxels", "ray_regions"}) ops.autograd(op, not_differentiable());
}

}  // namespace
}  // namespace torchvox
