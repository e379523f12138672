// SPDX-License-Identifier: Apache-2.0
//
// voxel_keys and its inverse voxel_cells; voxel_group; and voxel_downsample, which is keys, groups
// and means in one.
#include "csrc/kernels/filter/voxel_group.h"

#include "csrc/kernels/filter/voxel_downsample.h"
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

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_keys", voxel_keys, inference_only<kVoxelScatter>());
  ops.add("voxel_cells", voxel_cells, inference_only());
  ops.add("voxel_group", voxel_group, inference_only());
  ops.add("voxel_downsample", voxel_downsample, inference_only<kVoxelScatter>());
}

}  // namespace
}  // namespace torchvox
