// SPDX-License-Identifier: Apache-2.0
//
// voxel_csr lists the points of each row once; voxel_scatter reduces over that list many times.
#include "csrc/kernels/voxel/csr.h"
#include "csrc/ops/core/op.h"
#include "csrc/ops/grouping/reduction.h"

namespace torchvox {
namespace {

void check_int32_vector(const char* op, const char* name, const Tensor& tensor,
                        const c10::SymInt& length, const char* shape) {
  check_given(op, name, tensor);
  check_type(tensor.scalar_type() == at::kInt, op, {name, " must be int32"}, tensor.scalar_type());
  check_value(tensor.dim() == 1, op, {name, " must be ", shape}, tensor.sym_sizes());
  check_size(tensor.sym_size(0).sym_eq(length), op, {name, " must be ", shape}, tensor.sym_sizes());
}

void check_rows(const char* op, const Tensor& point_voxel, const c10::SymInt& num_rows) {
  check_given(op, "point_voxel", point_voxel);
  check_value(point_voxel.dim() == 1, op, "point_voxel must be [N]", point_voxel.sym_sizes());
  check_int32_vector(op, "point_voxel", point_voxel, point_voxel.sym_size(0), "[N]");
  check_below(point_voxel.sym_size(0), kMostEntries, op,
              "point_voxel must have N < 2^31 - 1 elements", point_voxel.sym_size(0));
  check_size(num_rows.sym_ge(0), op, "num_rows must be in [0, 2^31 - 1)", num_rows);
  check_below(num_rows, kMostEntries, op, "num_rows must be in [0, 2^31 - 1)", num_rows);
}

std::tuple<Tensor, Tensor> voxel_csr(const Tensor& point_voxel_in, c10::SymInt num_rows) {
  const char* op = "voxel_csr";
  check_rows(op, point_voxel_in, num_rows);
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

void check_matrix(const char* op, const char* name, const Tensor& tensor, const char* shape,
                  const c10::SymInt& rows) {
  check_given(op, name, tensor);
  check_value(tensor.dim() == 2, op, {name, " must be ", shape}, tensor.sym_sizes());
  check_size(tensor.sym_size(0).sym_eq(rows), op, {name, " must be ", shape}, tensor.sym_sizes());
  check_type(is_coordinate_type(tensor.scalar_type()), op,
             {name, " must be float16, bfloat16, float32 or float64"}, tensor.scalar_type());
}

std::tuple<Tensor, Tensor> voxel_scatter(const Tensor& feats_in, const Tensor& point_voxel_in,
                                         c10::SymInt num_rows, std::string_view reduce_name,
                                         const OptionalTensor& offsets_in,
                                         const OptionalTensor& perm_in) {
  const char* op = "voxel_scatter";
  const Reduction reduce = parse_reduction(op, reduce_name);
  check_rows(op, point_voxel_in, num_rows);
  check_matrix(op, "feats", feats_in, "[N, C] with the N of point_voxel",
               point_voxel_in.sym_size(0));
  check_device(op, "point_voxel", point_voxel_in, feats_in);
  check_value(offsets_in.has_value() == perm_in.has_value(), op,
              "offsets and perm must be given together, from voxel_csr",
              offsets_in ? "offsets alone" : "perm alone");
  if (offsets_in) {
    check_int32_vector(op, "offsets", *offsets_in, num_rows + 1, "[num_rows + 1]");
    check_int32_vector(op, "perm", *perm_in, point_voxel_in.sym_size(0), "[N]");
    check_device(op, "offsets", *offsets_in, feats_in);
    check_device(op, "perm", *perm_in, feats_in);
  }
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
  check_value(grad_in.dim() == 2, op, "grad must be [num_rows, C]", grad_in.sym_sizes());
  const c10::SymInt rows = grad_in.sym_size(0);
  check_rows(op, point_voxel_in, rows);
  check_matrix(op, "grad", grad_in, "[num_rows, C]", rows);
  check_int32_vector(op, "offsets", offsets_in, rows + 1, "[num_rows + 1]");
  check_type(arg_in.scalar_type() == at::kInt, op, "arg must be int32", arg_in.scalar_type());
  if (is_extreme(reduce)) {
    check_size(arg_in.sym_numel().sym_eq(grad_in.sym_numel()), op, "arg must be [num_rows, C]",
               arg_in.sym_sizes());
  }
  for (const auto& [name, tensor] :
       {std::pair<const char*, const Tensor&>{"point_voxel", point_voxel_in},
        {"offsets", offsets_in},
        {"arg", arg_in}}) {
    check_device(op, name, tensor, grad_in);
  }
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
