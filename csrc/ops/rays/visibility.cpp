// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/rays/visibility.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/rays/checks.h"
#include "csrc/ops/voxel/args.h"

namespace torchvox {
namespace {

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

  const RayTensors tensors(points, origins, origin_index, batch_offsets, num_valid, ray_flags);
  tensors.fill(args);
  Memory memory;
  args.blockers = static_cast<const uint8_t*>(memory.of(blockers));
  run(op, points, args);
  return {visibility, reached, counts};
}

TORCHVOX_REGISTER_OPS(ops) { ops.add("ray_visibility", ray_visibility, not_differentiable()); }

}  // namespace
}  // namespace torchvox
