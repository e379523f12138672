// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/pillars/scatter.h"

#include "csrc/ops/core/op.h"
#include "csrc/ops/pillars/checks.h"

namespace torchvox {
namespace {

Tensor pillar_scatter(const Tensor& feats, const Tensor& indices, c10::SymInt batch_size,
                      c10::IntArrayRef size) {
  const char* op = "pillar_scatter";
  Inputs in(op);
  add_indices(in, indices);
  in.add("feats", feats, Dtypes::kFloats, "[V, C]");
  check_batch_size(op, batch_size);
  check_value(size.size() == 2 && size[0] >= 1 && size[1] >= 1, op,
              "size must be (nx, ny), both at least 1", size);
  check_value(size[0] < kIndexLimit && size[1] < kIndexLimit, op,
              "size must be below 2^31 on each axis", size);
  Tensor canvas =
      empty_canvas(batch_size, feats.sym_size(1), size[0], size[1], feats.scalar_type(), feats);
  if (feats.is_meta() || canvas.numel() == 0) return canvas;
  PillarScatterArgs args;
  Memory memory;
  put_rows(args.rows, memory, indices, canvas.size(0));
  args.rows.nx = size[0];
  args.rows.ny = size[1];
  args.feats = memory.of(feats);
  args.dtype = dtype_of(feats.scalar_type());
  args.channels = feats.size(1);
  args.canvas = canvas.mutable_data_ptr();
  run(op, feats, args);
  return canvas;
}

Tensor pillar_scatter_backward(const Tensor& grad, const Tensor& indices) {
  const char* op = "_pillar_scatter_backward";
  Inputs in(op);
  in.add("grad", grad, Dtypes::kFloats, "[B, C, ny, nx]");
  add_indices(in, indices);
  PillarScatterBackwardArgs args;
  Tensor grad_feats = output(args.grad_feats, {in["V"], in["C"]}, grad.scalar_type(), grad);
  if (grad.is_meta() || grad_feats.numel() == 0) return grad_feats;
  Memory memory;
  put_rows(args.rows, memory, indices, grad.size(0));
  args.rows.nx = grad.size(3);
  args.rows.ny = grad.size(2);
  args.grad = grad.const_data_ptr();
  put_strides(grad, args.grad_strides);
  args.dtype = dtype_of(grad.scalar_type());
  args.channels = grad.size(1);
  run(op, grad, args);
  return grad_feats;
}

TORCHVOX_REGISTER_OPS(ops) {
  ops.add("pillar_scatter", pillar_scatter);
  ops.differentiable("pillar_scatter", {"_pillar_scatter_backward"});
  ops.add("_pillar_scatter_backward", pillar_scatter_backward, no_second_derivative());
}

}  // namespace
}  // namespace torchvox
