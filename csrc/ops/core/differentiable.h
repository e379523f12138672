// SPDX-License-Identifier: Apache-2.0
//
// Gradients by name: one autograd kernel for every op whose gradient is another op. What that op
// needs follows from its schema: see Derivative.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>
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
  // An argument that has no gradient: a tensor that requires one is refused.
  const char* constant = nullptr;
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

}  // namespace torchvox
