// SPDX-License-Identifier: Apache-2.0
//
// The voxel-grid filter as one call: keys, groups and means by the ops of these names, then what
// follows for each row.
#include <torch/library.h>

#include "csrc/kernels/filter/voxel_downsample.h"
#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/device.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> voxel_downsample(
    const Tensor& points, c10::ArrayRef<double> voxel_size,
    std::optional<c10::ArrayRef<double>> origin, std::optional<at::IntArrayRef> lower, int64_t bits,
    std::string_view order, std::string_view backend, const OptionalTensor& batch_offsets,
    const OptionalTensor& num_valid) {
  const char* op = "voxel_downsample";
  const auto [request, batches] = parse_key_request(op, points, voxel_size, origin, lower, bits,
                                                    "morton", batch_offsets, num_valid);
  const KeyFrame& frame = request.frame;
  check_int32_cells(op, frame);
  VoxelGroupArgs words;
  parse_group(op, order, backend, words);
  const c10::SymInt n = points.sym_size(0);
  Tensor indices = empty_beside({n, 4}, at::kInt, points);
  Tensor num_points = empty_beside({n}, at::kInt, points);
  Tensor representative = empty_beside({n}, at::kInt, points);
  Tensor counts = empty_beside({batches + 1, int64_t{kDownsampleCounts}}, at::kInt, points);
  if (points.is_meta()) {
    Tensor out = empty_beside({n, points.sym_size(1)}, points.scalar_type(), points);
    return {out, indices, num_points, representative, at::empty_like(num_points), counts};
  }
  DownsampleRowsArgs args;
  args.points = points.size(0);
  args.clouds = counts.size(0) - 1;
  args.frame = frame;
  const auto [keys, key_counts] =
      torchvox::voxel_keys(points, voxel_size, origin, at::IntArrayRef(frame.lower, 3), frame.bits,
                           "morton", batch_offsets, num_valid);
  const auto [row_keys, offsets, perm, point_voxel, group_counts] =
      torchvox::voxel_group(keys, 3 * frame.bits + sample_bits(args.clouds), order, backend);
  const Tensor out = torchvox::voxel_mean(points, offsets, perm);
  args.row_keys = row_keys.const_data_ptr<int64_t>();
  args.offsets = offsets.const_data_ptr<int32_t>();
  args.perm = perm.const_data_ptr<int32_t>();
  args.key_counts = key_counts.const_data_ptr<int32_t>();
  args.indices = indices.mutable_data_ptr<int32_t>();
  args.num_points = num_points.mutable_data_ptr<int32_t>();
  args.representative = representative.mutable_data_ptr<int32_t>();
  args.counts = counts.mutable_data_ptr<int32_t>();
  run(op, points, args);
  return {out, indices, num_points, representative, point_voxel, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add(TORCHVOX_OP(voxel_downsample));
  ops.autograd("voxel_downsample", inference_only());
}

}  // namespace
}  // namespace torchvox
