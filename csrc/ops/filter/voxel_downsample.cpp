// SPDX-License-Identifier: Apache-2.0
//
// The voxel-grid filter as one call, made of the other ops: keys, group, means, cells, counts.
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"
#include "csrc/ops/core/register.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

using at::Tensor;

// [R] of offsets [R + 1].
Tensor begins(const Tensor& offsets) {
  return offsets.narrow_symint(0, 0, offsets.sym_size(0) - 1);
}
Tensor sizes(const Tensor& offsets) {
  return offsets.narrow_symint(0, 1, offsets.sym_size(0) - 1).sub(begins(offsets));
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> voxel_downsample(
    const Tensor& points, c10::ArrayRef<double> voxel_size,
    std::optional<c10::ArrayRef<double>> origin, std::optional<at::IntArrayRef> lower, int64_t bits,
    std::string_view order, std::string_view backend, const OptionalTensor& batch_offsets,
    const OptionalTensor& num_valid) {
  const char* op = "voxel_downsample";
  const auto [args, batches] = parse_key_request(op, points, voxel_size, origin, lower, bits,
                                                 "morton", batch_offsets, num_valid);
  const KeyFrame& frame = args.frame;
  check_int32_cells(op, frame);
  VoxelGroupArgs words;
  parse_group(op, order, backend, words);
  const int place_bits = 3 * frame.bits;
  const auto [keys, key_counts] =
      torchvox::voxel_keys(points, voxel_size, origin, at::IntArrayRef(frame.lower, 3), frame.bits,
                           "morton", batch_offsets, num_valid);
  const int key_bits = place_bits + sample_bits(batches.maybe_as_int().value_or(1));
  const auto [row_keys, offsets, perm, point_voxel, group_counts] =
      torchvox::voxel_group(keys, key_bits, order, backend);
  const Tensor out = torchvox::voxel_mean(points, offsets, perm);
  const Tensor indices =
      torchvox::voxel_cells(row_keys, frame.bits, at::IntArrayRef(frame.lower, 3), "morton");
  // The places past the last point hold -1, and so does one more.
  const Tensor places = at::cat({perm, at::full({1}, -1, perm.options())});
  const Tensor representative = places.index_select(0, begins(offsets));
  Tensor rows = group_counts.narrow(0, 0, 1);
  if (batch_offsets) {
    const Tensor sample = row_keys.__rshift__(place_bits).to(at::kInt);
    rows = sizes(std::get<0>(torchvox::voxel_csr(sample, batches)));
  }
  const Tensor all_rows = at::cat({group_counts.narrow(0, 0, 1), rows});
  const Tensor counts = at::cat({all_rows.unsqueeze(1), key_counts}, 1);
  return {out, indices, sizes(offsets), representative, point_voxel, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add(TORCHVOX_OP(voxel_downsample));
  ops.autograd("voxel_downsample", inference_only());
}

}  // namespace
}  // namespace torchvox
