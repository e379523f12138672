// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/filter/exact_sum.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

// [R, W] sums, or [R, C] means.
Tensor reduce_rows(const char* op, const Tensor& values, const Tensor& offsets, const Tensor& perm,
                   bool means) {
  Inputs in(op);
  in.add("values", values, Dtypes::kNumbers, "[N, C]");
  check_below(in["N"], kIndexLimit - 1, op, "values must have N < 2^31 - 1 rows", in["N"]);
  in.add("offsets", offsets, Dtypes::kInt32, "[R + 1]");
  in.add("perm", perm, Dtypes::kInt32, "[N]");
  VoxelSumArgs args;
  const Tensor out = means
      ? output(args.means, {in["R"], in["C"]}, values.scalar_type(), values)
      : output(args.sums, {in["R"], in["C"] * sum_words(values.scalar_type())}, values);
  if (values.is_meta()) return out;
  Memory memory;
  args.values = memory.of(values);
  args.type = value_type_of(values.scalar_type());
  args.points = values.size(0);
  args.columns = values.size(1);
  args.rows = offsets.size(0) - 1;
  args.offsets = memory.of<int32_t>(offsets);
  args.perm = memory.of<int32_t>(perm);
  run(op, values, args);
  return out;
}

Tensor voxel_sum(const Tensor& values, const Tensor& offsets, const Tensor& perm) {
  return reduce_rows("voxel_sum", values, offsets, perm, /*means=*/false);
}

Tensor voxel_mean(const Tensor& values, const Tensor& offsets, const Tensor& perm) {
  return reduce_rows("voxel_mean", values, offsets, perm, /*means=*/true);
}

Tensor voxel_mean_of_sums(const Tensor& sums, const Tensor& num_points, at::ScalarType dtype) {
  const char* op = "voxel_mean_of_sums";
  Inputs in(op);
  in.add("sums", sums, Dtypes::kInt64, "[R, W]");
  in.add("num_points", num_points, Dtypes::kIndices, "[R]");
  check_type(is_coordinate_type(dtype) || dtype == at::kInt || dtype == at::kLong, op,
             "dtype must be float16, bfloat16, float32, float64, int32 or int64", dtype);
  const int64_t words = sum_words(dtype);
  check_size((sums.sym_size(1) % words).sym_eq(0), op,
             "sums must be [R, 3 * C] for a floating dtype", sums.sym_sizes());
  VoxelMeanOfSumsArgs args;
  const Tensor out = output(args.means, {in["R"], in["W"] / words}, dtype, sums);
  if (sums.is_meta()) return out;
  Memory memory;
  args.sums = memory.of<int64_t>(sums);
  args.num_points = memory.indices(num_points);
  args.type = value_type_of(dtype);
  args.rows = out.size(0);
  args.columns = out.size(1);
  run(op, sums, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_sum", voxel_sum, inference_only<kVoxelScatter>());
  ops.add("voxel_mean", voxel_mean, inference_only<kVoxelScatter>());
  ops.add("voxel_mean_of_sums", voxel_mean_of_sums, inference_only<kVoxelScatter>());
}

}  // namespace
}  // namespace torchvox
