// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/filter/exact_sum.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

void check_summed(const char* op, at::ScalarType type, const char* rule) {
  check_type(is_summed_type(type), op, rule, type);
}

// [R, W] sums, or [R, C] means.
Tensor reduce_rows(const char* op, const Tensor& values_in, const Tensor& offsets_in,
                   const Tensor& perm_in, bool means) {
  check_summed(op, values_in.scalar_type(),
               "values must be float16, bfloat16, float32, float64, int32 or int64");
  check_value(values_in.dim() == 2, op, "values must be [N, C]", values_in.sym_sizes());
  check_below(values_in.sym_size(0), kIndexLimit - 1, op, "values must have N < 2^31 - 1 rows",
              values_in.sym_size(0));
  check_device(op, "offsets", offsets_in, "values", values_in);
  Inputs in(op);
  in.add_size("N", values_in.sym_size(0), "values");
  in.add("offsets", offsets_in, Dtypes::kInt32, "[R + 1]");
  in.add("perm", perm_in, Dtypes::kInt32, "[N]");
  const c10::SymInt rows = offsets_in.sym_size(0) - 1, columns = values_in.sym_size(1);
  const Tensor out = means
      ? empty_beside({rows, columns}, values_in.scalar_type(), values_in)
      : empty_beside({rows, columns * sum_words(values_in.scalar_type())}, at::kLong, values_in);
  if (values_in.is_meta()) return out;
  const Tensor values = values_in.contiguous(), offsets = offsets_in.contiguous(),
               perm = perm_in.contiguous();
  VoxelSumArgs args;
  args.values = values.const_data_ptr();
  args.type = value_type_of(values.scalar_type());
  args.points = values.size(0);
  args.columns = values.size(1);
  args.rows = offsets.size(0) - 1;
  args.offsets = offsets.const_data_ptr<int32_t>();
  args.perm = perm.const_data_ptr<int32_t>();
  args.sums = means ? nullptr : out.mutable_data_ptr<int64_t>();
  args.means = means ? out.mutable_data_ptr() : nullptr;
  run(op, values, args);
  return out;
}

Tensor voxel_sum(const Tensor& values, const Tensor& offsets, const Tensor& perm) {
  return reduce_rows("voxel_sum", values, offsets, perm, /*means=*/false);
}

Tensor voxel_mean(const Tensor& values, const Tensor& offsets, const Tensor& perm) {
  return reduce_rows("voxel_mean", values, offsets, perm, /*means=*/true);
}

Tensor voxel_mean_of_sums(const Tensor& sums_in, const Tensor& num_points_in,
                          at::ScalarType dtype) {
  const char* op = "voxel_mean_of_sums";
  Inputs in(op);
  in.add("sums", sums_in, Dtypes::kInt64, "[R, W]");
  in.add("num_points", num_points_in, Dtypes::kIndices, "[R]");
  check_summed(op, dtype, "dtype must be float16, bfloat16, float32, float64, int32 or int64");
  const int64_t words = sum_words(dtype);
  check_size((sums_in.sym_size(1) % words).sym_eq(0), op,
             "sums must be [R, 3 * C] for a floating dtype", sums_in.sym_sizes());
  const Tensor out =
      empty_beside({sums_in.sym_size(0), sums_in.sym_size(1) / words}, dtype, sums_in);
  if (sums_in.is_meta()) return out;
  const Tensor sums = sums_in.contiguous(), num_points = num_points_in.contiguous();
  VoxelMeanOfSumsArgs args;
  args.sums = sums.const_data_ptr<int64_t>();
  args.num_points = index_array(num_points);
  args.type = value_type_of(dtype);
  args.rows = out.size(0);
  args.columns = out.size(1);
  args.means = out.mutable_data_ptr();
  run(op, sums, args);
  return out;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_sum", voxel_sum);
  ops.autograd("voxel_sum", inference_only<kVoxelScatter>());
  ops.add("voxel_mean", voxel_mean);
  ops.autograd("voxel_mean", inference_only<kVoxelScatter>());
  ops.add("voxel_mean_of_sums", voxel_mean_of_sums);
  ops.autograd("voxel_mean_of_sums", inference_only<kVoxelScatter>());
}

}  // namespace
}  // namespace torchvox
