// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "csrc/ops/core/differentiable.h"

namespace torchvox {

// Autograd kernel of an op without a derivative: runs the op below autograd, so that no output
// requires a gradient. Without it torch's fallback would mark every float output.
inline void not_differentiable_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                      torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}
inline torch::CppFunction not_differentiable() {
  return torch::CppFunction::makeFromBoxedFunction<&not_differentiable_kernel>();
}

// Kernel of an op that writes arguments and has no derivative. torch would not count the writes: a
// tensor that autograd had saved would change, and backward give a wrong gradient silently.
inline void mutating_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                            torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  std::vector<Tensor> written;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].alias_info() || !arguments[i].alias_info()->isWrite()) continue;
    for (const Tensor& tensor : values[i].isTensorList()
             ? values[i].toTensorVector()
             : std::vector<Tensor>{values[i].toTensor()}) {
      TORCH_CHECK_NOT_IMPLEMENTED(!tensor.requires_grad() && !tensor._fw_grad(0).defined(),
                                  op.schema().name(), ": ", arguments[i].name(),
                                  " is written, which has no derivative; give it tensors that "
                                  "require no gradient");
      if (!tensor.is_inference()) written.push_back(tensor);
    }
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  op.redispatchBoxed(keys & c10::after_ADInplaceOrView_keyset, stack);
  for (const Tensor& tensor : written) tensor.unsafeGetTensorImpl()->bump_version();
}
inline torch::CppFunction mutating() {
  return torch::CppFunction::makeFromBoxedFunction<&mutating_kernel>();
}

// Autograd kernel of a backward op whose contract promises no second derivative.
inline void no_second_derivative_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                        torch::jit::Stack* stack) {
  bool requires_gradient = false;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    requires_gradient = requires_gradient || (value.isTensor() && value.toTensor().requires_grad());
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!(requires_gradient && c10::GradMode::is_enabled()),
                              op.schema().name(),
                              ": has no second derivative; do not differentiate through this "
                              "op's gradient (create_graph=True)");
  not_differentiable_kernel(op, keys, stack);
}
inline torch::CppFunction no_second_derivative() {
  return torch::CppFunction::makeFromBoxedFunction<&no_second_derivative_kernel>();
}

// A forward-mode tangent counts as well: the C++ autograd function that it leads to refuses it,
// where the plain op would drop it silently.
inline bool wants_gradient(const Tensor& tensor) {
  return (c10::GradMode::is_enabled() && tensor.requires_grad()) ||
      tensor._fw_grad(/*level=*/0).defined();
}

// Ends of the sentence below: what has a derivative instead.
inline constexpr char kNoOther[] = "";
inline constexpr char kVoxelScatter[] = "; voxel_map and voxel_scatter have one";
inline constexpr char kQueryAndGroup[] = "; query_and_group, layers of torch and amax have one";

// Autograd kernel of an op for inference: an input that wants a gradient is an error, so that no
// training goes on without it.
template <const char* kInstead>
void inference_only_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  bool requires_gradient = false;
  for (const auto& value : torch::jit::last(*stack, op.schema().arguments().size())) {
    if (value.isTensor()) requires_gradient = requires_gradient || wants_gradient(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const Tensor& tensor : value.toTensorVector()) {
      requires_gradient = requires_gradient || wants_gradient(tensor);
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!requires_gradient, op.schema().name(),
                              ": is for inference and has no derivative; call it under "
                              "torch.no_grad() or on tensors that require no gradient",
                              kInstead);
  not_differentiable_kernel(op, keys, stack);
}
template <const char* kInstead = kNoOther>
torch::CppFunction inference_only() {
  return torch::CppFunction::makeFromBoxedFunction<&inference_only_kernel<kInstead>>();
}

// A typed handle; keep it in a static, so that the name is looked up once.
template <class Signature>
c10::TypedOperatorHandle<Signature> typed_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace torchvox
