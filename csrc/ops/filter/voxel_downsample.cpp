// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/filter/voxel_downsample.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> voxel_downsample(
    const Tensor& points_in, c10::ArrayRef<double> voxel_size,
    std::optional<c10::ArrayRef<double>> origin, std::optional<at::IntArrayRef> lower, int64_t bits,
    std::string_view order, std::string_view backend, const OptionalTensor& batch_offsets,
    const OptionalTensor& num_valid) {
  const char* op = "voxel_downsample";
  auto [request, batches] = parse_key_request(op, points_in, voxel_size, origin, lower, bits,
                                              "morton", batch_offsets, num_valid);
  check_int32_cells(op, request.frame);
  VoxelGroupArgs words;
  parse_group(op, order, backend, words);
  const c10::SymInt n = points_in.sym_size(0);
  const Tensor out = empty_beside({n, points_in.sym_size(1)}, points_in.scalar_type(), points_in);
  const Tensor indices = empty_beside({n, 4}, at::kInt, points_in);
  const Tensor num_points = empty_beside({n}, at::kInt, points_in);
  const Tensor representative = empty_beside({n}, at::kInt, points_in);
  const Tensor point_voxel = empty_beside({n}, at::kInt, points_in);
  const Tensor counts =
      empty_beside({batches + 1, int64_t{kDownsampleCounts}}, at::kInt, points_in);
  if (!points_in.is_meta()) {
    const Clouds packed(points_in.contiguous(), batch_offsets, num_valid);
    VoxelDownsampleArgs args;
    args.keys = request;
    args.keys.points = packed.view;
    args.type = value_type_of(points_in.scalar_type());
    args.by_key = words.by_key;
    args.backend = words.backend;
    args.threads = cpu_threads();
    args.means = out.mutable_data_ptr();
    args.indices = indices.mutable_data_ptr<int32_t>();
    args.num_points = num_points.mutable_data_ptr<int32_t>();
    args.representative = representative.mutable_data_ptr<int32_t>();
    args.point_voxel = point_voxel.mutable_data_ptr<int32_t>();
    args.counts = counts.mutable_data_ptr<int32_t>();
    run(op, packed.points, args);
  }
  return {out, indices, num_points, representative, point_voxel, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_downsample", voxel_downsample);
  ops.autograd("voxel_downsample", inference_only<kVoxelScatter>());
}

}  // namespace
}  // namespace torchvox
