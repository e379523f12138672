// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/filter/voxel_downsample.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

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
  ops.add("voxel_downsample", voxel_downsample, inference_only<kVoxelScatter>());
}

}  // namespace
}  // namespace torchvox
