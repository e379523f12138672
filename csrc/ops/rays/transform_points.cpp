// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/rays/transform_points.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/rays/checks.h"

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

TORCHVOX_REGISTER_OPS(ops) { ops.add("transform_points", transform_points, inference_only()); }

}  // namespace
}  // namespace torchvox
