// SPDX-License-Identifier: Apache-2.0
//
// Gradients by name: one autograd kernel for every op whose gradient is another op. What that op
// needs follows from its schema: see Derivative.
#pragma once

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
#include <c10/core/GradMode.h>
#include <torch/library.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace torchvox {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// The arguments of a call on torch's stack, by name.
class Call {
 public:
  Call(const c10::FunctionSchema& schema, torch::jit::Stack& stack)
      : schema_(schema), first_(stack.end() - schema.arguments().size()) {}

  const char* op() const;  // its name, without the namespace
  bool has(const char* name) const { return schema_.argumentIndexWithName(name).has_value(); }
  c10::IValue& operator[](const char* name) const {
    return at(*schema_.argumentIndexWithName(name));
  }
  c10::IValue& at(size_t place) const { return first_[place]; }
  // Undefined where the argument is None.
  const Tensor& tensor(const char* name) const { return tensor_of((*this)[name]); }
  OptionalTensor optional(const char* name) const;
  // 0 without such an axis, which the op then refuses in its own words.
  c10::SymInt size(const char* name, int64_t axis) const {
    const Tensor& tensor = this->tensor(name);
    return tensor.defined() && tensor.dim() > axis ? tensor.sym_size(axis) : c10::SymInt(0);
  }

  static const Tensor& tensor_of(const c10::IValue& value) {
    static const Tensor undefined;
    return value.isTensor() ? value.toTensor() : undefined;
  }

 private:
  const c10::FunctionSchema& schema_;
  torch::jit::Stack::iterator first_;
};

// The gradient of an op. The schema of `backward` says what is saved and what comes back. Its
// arguments are
//   named like an argument or an output of the op: that value, saved for the backward pass
//   for_x:            whether the gradient of argument x is needed
//   with a default:   the default
//   any other:        the gradient of an output, in order (`Tensor?`: may be None)
// and its outputs grad_x or to_x the gradients of arguments x; an output without a name is that of
// the first argument. Outputs of the op whose gradient it does not take are not differentiable.
struct Derivative {
  std::string backward;
  // Runs in place of the op where a gradient is recorded: the same arguments, more outputs.
  std::string train = "";
  // Arguments of `backward` that are computed from those of the op.
  std::map<std::string, std::function<c10::IValue(const Call&)>> derived = {};
  // Arguments that have no gradient: a tensor that requires one is refused.
  std::vector<const char*> constants = {};
  // A flag without which the first and the second argument have no gradient.
  const char* coordinates_flag = nullptr;
  // Checks what only the gradient requires of the arguments, or fills some in.
  void (*prepare)(const Call&) = nullptr;
  // Returns the output as other differentiable ops compute it, or nothing to go on as usual.
  OptionalTensor (*compose)(const Call&) = nullptr;
};

// For Derivative::derived.
inline auto dtype_of_argument(const char* name) {
  return [name](const Call& call) { return c10::IValue(call.tensor(name).scalar_type()); };
}
inline auto size_of_argument(const char* name, int axis) {
  return [name, axis](const Call& call) { return c10::IValue(call.size(name, axis)); };
}

// The autograd kernel of `op`.
torch::CppFunction differentiable(std::string op, Derivative derivative);

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
