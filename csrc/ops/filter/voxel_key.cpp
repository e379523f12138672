// SPDX-License-Identifier: Apache-2.0
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

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_keys", voxel_keys, inference_only<kVoxelScatter>());
  ops.add("voxel_cells", voxel_cells, inference_only());
}

}  // namespace
}  // namespace torchvox
