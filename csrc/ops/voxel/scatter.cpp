// SPDX-License-Identifier: Apache-2.0
//
// voxel_csr lists the points of each row once; voxel_scatter reduces over that list many times.
#include "csrc/kernels/voxel/csr.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/reduction.h"

namespace torchvox {
namespace {

void add_rows(const char* op, Inputs& in, const Tensor& point_voxel, const c10::SymInt& num_rows) {
  in.add("point_voxel", point_voxel, Dtypes::kInt32, "[N]");
  in.add_size("num_rows", num_rows);
  check_below(in["N"], kMostEntries, op, "point_voxel must have N < 2^31 - 1 elements", in["N"]);
  check_size(num_rows.sym_ge(0), op, "num_rows must be in [0, 2^31 - 1)", num_rows);
  check_below(num_rows, kMostEntries, op, "num_rows must be in [0, 2^31 - 1)", num_rows);
}

std::tuple<Tensor, Tensor> voxel_csr(const Tensor& point_voxel_in, c10::SymInt num_rows) {
  const char* op = "voxel_csr";
  Inputs in(op);
  add_rows(op, in, point_voxel_in, num_rows);
  Tensor offsets = empty_beside({num_rows + 1}, at::kInt, point_voxel_in);
  Tensor perm = empty_beside({point_voxel_in.sym_size(0)}, at::kInt, point_voxel_in);
  if (point_voxel_in.is_meta()) return {offsets, perm};
  const Tensor point_voxel = point_voxel_in.contiguous();
  VoxelCsrArgs args;
  args.point_voxel = point_voxel.const_data_ptr<int32_t>();
  args.points = point_voxel.size(0);
  args.rows = offsets.size(0) - 1;
  args.offsets = offsets.mutable_data_ptr<int32_t>();
  args.perm = perm.mutable_data_ptr<int32_t>();
  run(op, point_voxel, args);
  return {offsets, perm};
}

std::tuple<Tensor, Tensor> voxel_scatter(const Tensor& feats_in, const Tensor& point_voxel_in,
                                         c10::SymInt num_rows, std::string_view reduce_name,
                                         const OptionalTensor& offsets_in,
                                         const OptionalTensor& perm_in) {
  const char* op = "voxel_scatter";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  add_rows(op, in, point_voxel_in, num_rows);
  in.add("feats", feats_in, Dtypes::kFloats, "[N, C]");
  check_value(offsets_in.has_value() == perm_in.has_value(), op,
              "offsets and perm must be given together, from voxel_csr",
              offsets_in ? "offsets alone" : "perm alone");
  in.add("offsets", offsets_in, Dtypes::kInt32, "[num_rows + 1]");
  in.add("perm", perm_in, Dtypes::kInt32, "[N]");
  const c10::SymInt channels = feats_in.sym_size(1);
  Tensor out = empty_beside({num_rows, channels}, feats_in.scalar_type(), feats_in);
  Tensor arg = is_extreme(reduce) ? empty_beside({num_rows, channels}, at::kInt, feats_in)
                                  : empty_beside({0}, at::kInt, feats_in);
  if (feats_in.is_meta()) return {out, arg};

  Tensor offsets, perm;
  if (offsets_in) {
    offsets = offsets_in->contiguous();
    perm = perm_in->contiguous();
  } else {
    std::tie(offsets, perm) = voxel_csr(point_voxel_in, num_rows);
  }
  const Tensor feats = feats_in.contiguous();
  SegmentReduceArgs args;
  args.src = feats.const_data_ptr();
  args.dtype = dtype_of(feats.scalar_type());
  args.reduce = reduce;
  args.rows = args.entries = feats.size(0);
  args.channels = feats.size(1);
  args.segments = out.size(0);
  args.offsets = index_array(offsets);
  args.index = index_array(perm);
  args.out = out.mutable_data_ptr();
  args.arg = is_extreme(reduce) ? arg.mutable_data_ptr<int32_t>() : nullptr;
  run(op, feats, args);
  return {out, arg};
}

Tensor voxel_scatter_backward(const Tensor& grad_in, const Tensor& point_voxel_in,
                              const Tensor& offsets_in, const Tensor& arg_in,
                              std::string_view reduce_name) {
  const char* op = "_voxel_scatter_backward";
  const Reduction reduce = parse_reduction(op, reduce_name);
  Inputs in(op);
  in.add("grad", grad_in, Dtypes::kFloats, "[num_rows, C]");
  in.add("point_voxel", point_voxel_in, Dtypes::kInt32, "[N]");
  in.add("offsets", offsets_in, Dtypes::kInt32, "[num_rows + 1]");
  in.add("arg", arg_in, Dtypes::kInt32, is_extreme(reduce) ? "[num_rows, C]" : "[0]");
  Tensor grad_feats =
      at::empty_symint({point_voxel_in.sym_size(0), grad_in.sym_size(1)}, grad_in.options());
  if (grad_in.is_meta()) return grad_feats;

  const Tensor grad = grad_in.contiguous(), point_voxel = point_voxel_in.contiguous();
  const Tensor offsets = offsets_in.contiguous(), arg = arg_in.contiguous();
  SegmentSpreadArgs args;
  args.grad = grad.const_data_ptr();
  args.dtype = dtype_of(grad.scalar_type());
  args.reduce = reduce;
  args.channels = grad.size(1);
  args.segments = grad.size(0);
  args.entries = point_voxel.size(0);
  args.segment = point_voxel.const_data_ptr<int32_t>();
  args.offsets = index_array(offsets);
  args.arg = is_extreme(reduce) ? arg.const_data_ptr<int32_t>() : nullptr;
  args.out = grad_feats.mutable_data_ptr();
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
  ops.add("voxel_csr", voxel_csr);
  ops.autograd("voxel_csr", not_differentiable());
  ops.add("voxel_scatter", voxel_scatter);
  ops.differentiable("voxel_scatter",
                     {.backward = "_voxel_scatter_backward", .prepare = list_points});
  ops.add("_voxel_scatter_backward", voxel_scatter_backward);
  ops.autograd("_voxel_scatter_backward", no_second_derivative());
}

}  // namespace
}  // namespace torchvox
