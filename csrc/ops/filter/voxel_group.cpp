// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/filter/voxel_group.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/filter/checks.h"

namespace torchvox {
namespace {

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

TORCHVOX_REGISTER_OPS(ops) { ops.add("voxel_group", voxel_group, inference_only()); }

}  // namespace
}  // namespace torchvox
