// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/rays/transform_points.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/rays/checks.h"

namespace torchvox {
namespace {

Tensor transform_points(const Tensor& points, const Tensor& poses_in,
                        const OptionalTensor& pose_index_in) {
  const char* op = "transform_points";
  check_packed_points(op, points);
  Inputs in(op);
  in.add("points", points, Dtypes::kFloats, "[N, C]");
  in.add("poses", poses_in, Dtypes::kFloats, "[O, 3, 4]");
  in.add("pose_index", pose_index_in, Dtypes::kIndices, "[N]");
  check_size(pose_index_in ? c10::SymBool(true) : in["O"].sym_eq(1), op,
             "poses must be one where pose_index is None", poses_in.sym_sizes());
  const Tensor out = empty_beside({points.sym_size(0), 3}, at::kDouble, points);
  if (!points.is_meta()) {
    const Clouds packed(points, {}, {});
    const Tensor poses = poses_in.contiguous();
    const OptionalTensor pose_index = contiguous(pose_index_in);
    TransformPointsArgs args;
    args.points = packed.view;
    args.poses = poses.const_data_ptr();
    args.pose_type = dtype_of(poses.scalar_type());
    args.pose_rows = poses.size(0);
    args.pose_index = index_array(pose_index);
    args.out = out.mutable_data_ptr<double>();
    run(op, points, args);
  }
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("transform_points", transform_points);
  ops.autograd("transform_points", inference_only());
}

}  // namespace
}  // namespace torchvox
