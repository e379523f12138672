// SPDX-License-Identifier: Apache-2.0
//
// voxel_csr lists the points of each row once; voxel_scatter reduces over that list many times.
#include "csrc/kernels/voxel/csr.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/reduction.h"

namespace torchvox {
namespace {

void check_rows(const char* op, const Inputs& in) {
  check_below(in["N"], kMostEntries, op, "point_voxel must have N < 2^31 - 1 elements", in["N"]);
  check_below(in["num_rows"], kMostEntries, op, "num_rows must be in [0, 2^31 - 1)",
              in["num_rows"]);
}

void add_rows(const char* op, Inputs& in, const Tensor& point_voxel, const c10::SymInt& num_rows) {
  in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
  in.add_size("num_rows", num_rows);
  check_size(num_rows.sym_ge(0), op, "num_rows must be in [0, 2^31 - 1)", num_rows);
  check_rows(op, in);
}

std::tuple<Tensor, Tensor> voxel_csr(const Tensor& point_voxel, c10::SymInt num_rows) {
  const char* op = "voxel_csr";
  Inputs in(op);
  add_rows(op, in, point_voxel, num_rows);
  VoxelCsrArgs args;
  Tensor offsets = output(args.offsets, {num_rows + 1}, point_voxel);
  Tensor perm = output(args.perm, {in["N"]}, point_voxel);
  if (point_voxel.is_meta()) return {offsets, perm};
  Memory memory;
  args.point_voxel = memory.of<int32_t>(point_voxel);
  args.points = point_voxel.size(0);
  args.rows = offsets.size(0) - 1;
  run(op, point_voxel, args);
  return {offsets, perm};
}

std::tuple<Tensor, Tensor> voxel_scatter(const Tensor& feats, const Tensor& point_voxel,
                                         c10::SymInt num_rows, std::string_view reduce_name,
                                         const OptionalTensor& offsets_in,
                                         const OptionalTensor& perm_in) {
  const char* op = "voxel_scatter";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  add_rows(op, in, point_voxel, num_rows);
  in.add("feats", feats, Dtypes::kFloats, "[N, C]");
  check_value(offsets_in.has_value() == perm_in.has_value(), op,
              "offsets and perm must be given together, from voxel_csr",
              offsets_in ? "offsets alone" : "perm alone");
  in.add("offsets", offsets_in, Dtypes::kInt32, "[num_rows + 1]");
  in.add("perm", perm_in, Dtypes::kInt32, "[N]");
  SegmentReduceArgs args;
  const c10::SymInt channels = feats.sym_size(1);
  Tensor out = output(args.out, {num_rows, channels}, feats.scalar_type(), feats);
  Tensor arg = output_arg(args, reduce, {num_rows, channels}, feats);
  if (feats.is_meta()) return {out, arg};

  Tensor offsets, perm;
  if (!offsets_in) std::tie(offsets, perm) = voxel_csr(point_voxel, num_rows);
  Memory memory;
  args.src = memory.of(feats);
  args.dtype = dtype_of(feats.scalar_type());
  args.reduce = reduce;
  args.rows = args.entries = feats.size(0);
  args.channels = feats.size(1);
  args.segments = out.size(0);
  args.offsets = memory.indices(offsets_in ? *offsets_in : offsets);
  args.index = memory.indices(perm_in ? *perm_in : perm);
  run(op, feats, args);
  return {out, arg};
}

Tensor voxel_scatter_backward(const Tensor& grad, const Tensor& point_voxel, const Tensor& offsets,
                              const Tensor& arg, std::string_view reduce_name) {
  const char* op = "_voxel_scatter_backward";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  in.add("grad", grad, Dtypes::kFloats, "[num_rows, C]");
  in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
  in.add("offsets", offsets, Dtypes::kInt32, "[num_rows + 1]");
  in.add("arg", arg, Dtypes::kInt32, is_extreme(reduce) ? "[num_rows, C]" : "[0]");
  check_rows(op, in);
  SegmentSpreadArgs args;
  Tensor grad_feats = output(args.out, {in["N"], in["C"]}, grad.scalar_type(), grad);
  if (grad.is_meta()) return grad_feats;

  Memory memory;
  args.grad = memory.of(grad);
  args.dtype = dtype_of(grad.scalar_type());
  args.reduce = reduce;
  args.channels = grad.size(1);
  args.segments = grad.size(0);
  args.entries = point_voxel.size(0);
  args.segment = memory.of<int32_t>(point_voxel);
  args.offsets = memory.indices(offsets);
  if (is_extreme(reduce)) args.arg = memory.of<int32_t>(arg);
  run(op, grad, args);
  return grad_feats;
}

// The gradient takes the counts of rows from the list of points that the forward used.
void list_points(const Call& call) {
  if (call.optional("offsets") || call.optional("perm")) return;
  static const auto list =
      typed_op<std::tuple<Tensor, Tensor>(const Tensor&, c10::SymInt)>("torchvox::voxel_csr");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  std::tie(call["offsets"], call["perm"]) =
      list.call(call.tensor("point_voxel"), call["num_rows"].toSymInt());
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("voxel_csr", voxel_csr, not_differentiable());
  ops.add("voxel_scatter", voxel_scatter);
  ops.differentiable("voxel_scatter",
                     {.backward = "_voxel_scatter_backward", .prepare = list_points});
  ops.add("_voxel_scatter_backward", voxel_scatter_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
