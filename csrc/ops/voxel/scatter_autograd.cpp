// SPDX-License-Identifier: Apache-2.0
//
// The gradient of a point is read from its row: a gather, with the row's count taken from the same
// list of points that the forward used.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "csrc/ops/core/autograd.h"

namespace torchvox {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& backward_op() {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                         std::string_view)>("torchvox::_voxel_scatter_backward");
  return op;
}

class VoxelScatter : public torch::autograd::Function<VoxelScatter> {
 public:
  static variable_list forward(AutogradContext* ctx, const Tensor& feats, const Tensor& point_voxel,
                               const c10::SymInt& num_rows, std::string_view reduce,
                               const OptionalTensor& offsets_in, const OptionalTensor& perm_in) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    OptionalTensor offsets = offsets_in, perm = perm_in;
    if (!offsets && !perm) {
      std::tie(offsets, perm) = torchvox::voxel_csr(point_voxel, num_rows);
    }
    auto [out, arg] = torchvox::voxel_scatter(feats, point_voxel, num_rows, reduce, offsets, perm);
    ctx->save_for_backward({point_voxel, *offsets, arg});
    ctx->saved_data["reduce"] = std::string(reduce);
    ctx->set_materialize_grads(false);
    ctx->mark_non_differentiable({arg});
    return {out, arg};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    variable_list out(6);
    if (!grads[0].defined()) return out;
    const variable_list saved = ctx->get_saved_variables();
    out[0] = backward_op().call(grads[0], saved[0], saved[1], saved[2],
                                ctx->saved_data["reduce"].toStringRef());
    return out;
  }
};

std::tuple<Tensor, Tensor> voxel_scatter(const Tensor& feats, const Tensor& point_voxel,
                                         c10::SymInt num_rows, std::string_view reduce,
                                         const OptionalTensor& offsets,
                                         const OptionalTensor& perm) {
  if (wants_gradient(feats)) {
    const auto out = VoxelScatter::apply(feats, point_voxel, num_rows, reduce, offsets, perm);
    return {out[0], out[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return torchvox::voxel_scatter(feats, point_voxel, num_rows, reduce, offsets, perm);
}

TORCHVOX_REGISTER_OPS(ops) { ops.autograd(TORCHVOX_OP(voxel_scatter)); }

}  // namespace
}  // namespace torchvox
