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
    const OptionalTensor& ray_flags, const OptionalTensor& blockers_in) {
  const char* op = "ray_visibility";
  const c10::SymInt samples =
      check_rays(op, points, origins, origin_index, batch_offsets, num_valid, ray_flags);
  RayVisibilityArgs args;
  args.grid = parse_voxel_grid(op, voxel_size, point_cloud_range);
  check_keys(op, args.grid, samples);
  const int32_t* const cells = args.grid.cells;
  const std::vector<c10::SymInt> shape{samples, cells[2], cells[1], cells[0]};
  if (blockers_in) {
    const char* rule = "blockers must be [B, nz, ny, nx], as the visibility";
    check_type(blockers_in->scalar_type() == at::kByte || blockers_in->scalar_type() == at::kBool,
               op, "blockers must be uint8 or bool", blockers_in->scalar_type());
    check_device(op, "blockers", *blockers_in, points);
    check_value(blockers_in->dim() == 4, op, rule, blockers_in->sym_sizes());
    for (int d = 0; d < 4; ++d) {
      check_size(blockers_in->sym_size(d).sym_eq(shape[d]), op, rule, blockers_in->sym_sizes());
    }
  }
  const Tensor visibility = empty_beside(shape, at::kByte, points);
  const Tensor reached = empty_beside({points.sym_size(0)}, at::kChar, points);
  const Tensor counts = empty_beside({samples + 1, int64_t{kVisibilityCounts}}, at::kInt, points);
  if (!points.is_meta()) {
    const RayTensors tensors(points, origins, origin_index, batch_offsets, num_valid, ray_flags);
    tensors.fill(args);
    const OptionalTensor blockers = contiguous(blockers_in);
    if (blockers) args.blockers = static_cast<const uint8_t*>(blockers->const_data_ptr());
    args.visibility = visibility.mutable_data_ptr<uint8_t>();
    args.reached = reached.mutable_data_ptr<int8_t>();
    args.counts = counts.mutable_data_ptr<int32_t>();
    run(op, points, args);
  }
  return {visibility, reached, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("ray_visibility", ray_visibility);
  ops.autograd("ray_visibility", not_differentiable());
}

}  // namespace
}  // namespace torchvox
