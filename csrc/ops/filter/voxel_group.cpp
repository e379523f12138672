// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/filter/voxel_group.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> voxel_group(const Tensor& keys_in,
                                                               int64_t key_bits,
                                                               std::string_view order,
                                                               std::string_view backend) {
  const char* op = "voxel_group";
  check_key_vector(op, keys_in);
  check_value(key_bits >= 1 && key_bits <= kMostKeyBits, op, "key_bits must be 1 to 63", key_bits);
  VoxelGroupArgs args;
  args.key_bits = static_cast<int>(key_bits);
  parse_group(op, order, backend, args);
  const c10::SymInt n = keys_in.sym_size(0);
  Tensor row_keys = empty_beside({n}, at::kLong, keys_in);
  Tensor offsets = empty_beside({n + 1}, at::kInt, keys_in);
  Tensor perm = empty_beside({n}, at::kInt, keys_in);
  Tensor point_voxel = empty_beside({n}, at::kInt, keys_in);
  Tensor counts = empty_beside({2}, at::kInt, keys_in);
  if (!keys_in.is_meta()) {
    const Tensor keys = keys_in.contiguous();
    args.keys = keys.const_data_ptr<int64_t>();
    args.points = keys.size(0);
    args.threads = cpu_threads();
    args.row_keys = row_keys.mutable_data_ptr<int64_t>();
    args.offsets = offsets.mutable_data_ptr<int32_t>();
    args.perm = perm.mutable_data_ptr<int32_t>();
    args.point_voxel = point_voxel.mutable_data_ptr<int32_t>();
    args.counts = counts.mutable_data_ptr<int32_t>();
    run(op, keys, args);
  }
  return {row_keys, offsets, perm, point_voxel, counts};
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_group", voxel_group);
  ops.autograd("voxel_group", inference_only());
}

}  // namespace
}  // namespace torchvox
