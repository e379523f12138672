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
  Tensor keys = empty_beside({points.sym_size(0)}, at::kLong, points);
  Tensor counts = empty_beside({batches + 1, int64_t{kKeyCounts}}, at::kInt, points);
  if (points.is_meta()) return {keys, counts};
  const Clouds packed(points, batch_offsets, num_valid);
  args.points = packed.view;
  args.keys = keys.mutable_data_ptr<int64_t>();
  args.counts = counts.mutable_data_ptr<int32_t>();
  run(op, points, args);
  return {keys, counts};
}

Tensor voxel_cells(const Tensor& keys_in, int64_t bits, at::IntArrayRef lower,
                   std::string_view layout) {
  const char* op = "voxel_cells";
  check_key_vector(op, keys_in);
  VoxelCellsArgs args;
  args.frame = parse_key_frame(op, lower, bits, layout);
  check_int32_cells(op, args.frame);
  Tensor cells = empty_beside({keys_in.sym_size(0), 4}, at::kInt, keys_in);
  if (keys_in.is_meta()) return cells;
  const Tensor keys = keys_in.contiguous();
  args.keys = keys.const_data_ptr<int64_t>();
  args.rows = keys.size(0);
  args.cells = cells.mutable_data_ptr<int32_t>();
  run(op, keys, args);
  return cells;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_keys", voxel_keys);
  ops.autograd("voxel_keys", inference_only<kVoxelScatter>());
  ops.add("voxel_cells", voxel_cells);
  ops.autograd("voxel_cells", inference_only());
}

}  // namespace
}  // namespace torchvox
