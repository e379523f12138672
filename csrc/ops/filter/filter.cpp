// SPDX-License-Identifier: Apache-2.0
//
// voxel_keys and its inverse voxel_cells; voxel_group; sums and means of its rows; and
// voxel_downsample, which is keys, groups and means in one.
#include "csrc/kernels/filter/exact_sum.h"
#include "csrc/kernels/filter/voxel_downsample.h"
#include "csrc/kernels/filter/voxel_group.h"
#include "csrc/kernels/filter/voxel_key.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor> voxel_keys(const Tensor& points, c10::ArrayRef<double> voxel_size,
                                      std::optional<c10::ArrayRef<double>> origin,
                                      std::optional<at::IntArrayRef> lower, int64_t bits,
                                      std::string_view layout, const OptionalTensor& batch_offsets,
                                      const OptionalTensor& num_valid) {
  const char* op = "voxel_keys";
  auto [args, batches] = parse_key_request(op, points, voxel_size, origin, lower, bits, layout,
                                           batch_offsets, num_valid);
  Tensor keys = output(args.keys, {points.sym_size(0)}, points);
  Tensor counts = output(args.counts, {batches + 1, int64_t{kKeyCounts}}, points);
  if (points.is_meta()) return {keys, counts};
  const Clouds packed(points, batch_offsets, num_valid);
  args.points = packed.view;
  run(op, points, args);
  return {keys, counts};
}

Tensor voxel_cells(const Tensor& keys, int64_t bits, at::IntArrayRef lower,
                   std::string_view layout) {
  const char* op = "voxel_cells";
  Inputs in(op);
  add_keys(in, keys);
  VoxelCellsArgs args;
  args.frame = parse_key_frame(op, lower, bits, layout);
  check_int32_cells(op, args.frame);
  Tensor cells = output(args.cells, {in["N"], 4}, keys);
  if (keys.is_meta()) return cells;
  Memory memory;
  args.keys = memory.of<int64_t>(keys);
  args.rows = keys.size(0);
  run(op, keys, args);
  return cells;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> voxel_group(const Tensor& keys, int64_t key_bits,
                                                               std::string_view order,
                                                               std::string_view backend) {
  const char* op = "voxel_group";
  Inputs in(op);
  add_keys(in, keys);
  check_value(key_bits >= 1 && key_bits <= kMostKeyBits, op, "key_bits must be 1 to 63", key_bits);
  VoxelGroupArgs args;
  args.key_bits = static_cast<int>(key_bits);
  parse_group(op, order, backend, args);
  const c10::SymInt n = in["N"];
  Tensor row_keys = output(args.row_keys, {n}, keys);
  Tensor offsets = output(args.offsets, {n + 1}, keys);
  Tensor perm = output(args.perm, {n}, keys);
  Tensor point_voxel = output(args.point_voxel, {n}, keys);
  Tensor counts = output(args.counts, {2}, keys);
  if (!keys.is_meta()) {
    Memory memory;
    args.keys = memory.of<int64_t>(keys);
    args.points = keys.size(0);
    args.threads = cpu_threads();
    run(op, keys, args);
  }
  return {row_keys, offsets, perm, point_voxel, counts};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> voxel_downsample(
    const Tensor& points, c10::ArrayRef<double> voxel_size,
    std::optional<c10::ArrayRef<double>> origin, std::optional<at::IntArrayRef> lower, int64_t bits,
    std::string_view order, std::string_view backend, const OptionalTensor& batch_offsets,
    const OptionalTensor& num_valid) {
  const char* op = "voxel_downsample";
  auto [request, batches] = parse_key_request(op, points, voxel_size, origin, lower, bits, "morton",
                                              batch_offsets, num_valid);
  check_int32_cells(op, request.frame);
  VoxelGroupArgs words;
  parse_group(op, order, backend, words);
  const c10::SymInt n = points.sym_size(0);
  VoxelDownsampleArgs args;
  const Tensor out = output(args.means, {n, points.sym_size(1)}, points.scalar_type(), points);
  const Tensor indices = output(args.indices, {n, 4}, points);
  const Tensor num_points = output(args.num_points, {n}, points);
  const Tensor representative = output(args.representative, {n}, points);
  const Tensor point_voxel = output(args.point_voxel, {n}, points);
  const Tensor counts = output(args.counts, {batches + 1, int64_t{kDownsampleCounts}}, points);
  if (!points.is_meta()) {
    const Clouds packed(points.contiguous(), batch_offsets, num_valid);
    args.keys = request;
    args.keys.points = packed.view;
    args.type = value_type_of(points.scalar_type());
    args.by_key = words.by_key;
    args.backend = words.backend;
    args.threads = cpu_threads();
    run(op, packed.points, args);
  }
  return {out, indices, num_points, representative, point_voxel, counts};
}

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
  ops.add("voxel_keys", voxel_keys, inference_only<kVoxelScatter>());
  ops.add("voxel_cells", voxel_cells, inference_only());
  ops.add("voxel_group", voxel_group, inference_only());
  ops.add("voxel_downsample", voxel_downsample, inference_only<kVoxelScatter>());
  ops.add("voxel_sum", voxel_sum, inference_only<kVoxelScatter>());
  ops.add("voxel_mean", voxel_mean, inference_only<kVoxelScatter>());
  ops.add("voxel_mean_of_sums", voxel_mean_of_sums, inference_only<kVoxelScatter>());
}

}  // namespace
}  // namespace torchvox
