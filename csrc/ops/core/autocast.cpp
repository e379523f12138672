// SPDX-License-Identifier: Apache-2.0
//
// Under autocast one of several arguments that must agree may come out of a layer in half
// precision. An op's Agreement names what must agree: such arguments are widened to a type that
// holds them all, those that agree stay as they are, and halves where an op takes none are
// widened. Tensors of integers are left to the op, which refuses them. Layers are lowered to
// autocast's own type instead.
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <map>
#include <string>
#include <vector>

#include "csrc/ops/core/register.h"

namespace torchvox {
namespace {

std::map<std::string, Agreement>& agreements() {
  static std::map<std::string, Agreement> by_op;
  return by_op;
}

// The tensors of an argument: one, a list of them, or none.
std::vector<Tensor> tensors_of(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return {value.toTensor()};
  return value.isTensorList() ? value.toTensorVector() : std::vector<Tensor>();
}

// Replaces each tensor by what change(tensor) gives.
template <class Change>
void change_tensors(c10::IValue& value, const Change& change) {
  std::vector<Tensor> tensors = tensors_of(value);
  for (Tensor& tensor : tensors) tensor = change(tensor);
  if (value.isTensorList()) {
    value = c10::IValue(tensors);
  } else if (!tensors.empty()) {
    value = tensors[0];
  }
}

void widen_halves(c10::IValue& value, std::optional<at::ScalarType> beside, at::ScalarType wide) {
  change_tensors(value, [&](const Tensor& tensor) {
    const at::ScalarType type = tensor.scalar_type();
    const bool half = type == at::kHalf || type == at::kBFloat16;
    return half && type != beside ? tensor.to(wide) : tensor;
  });
}

void widen_together(const std::vector<c10::IValue*>& values) {
  std::optional<at::ScalarType> widest;
  for (const c10::IValue* value : values) {
    for (const Tensor& tensor : tensors_of(*value)) {
      if (!tensor.is_floating_point()) return;
      widest = c10::promoteTypes(widest.value_or(tensor.scalar_type()), tensor.scalar_type());
    }
  }
  for (c10::IValue* value : values) {
    if (widest) change_tensors(*value, [&](const Tensor& t) { return t.to(*widest); });
  }
}

void lower(c10::IValue& value) {
  change_tensors(value, [](const Tensor& tensor) {
    const bool narrow = tensor.is_floating_point() && tensor.scalar_type() != at::kDouble;
    return narrow ? tensor.to(at::autocast::get_autocast_dtype(tensor.device().type())) : tensor;
  });
}

void autocast_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::string& name = op.schema().name();
  const Agreement& agreement = agreements().at(name.substr(name.find("::") + 2));
  const auto& arguments = op.schema().arguments();
  const auto value = [&](const std::string& argument) {
    const size_t place = *op.schema().argumentIndexWithName(argument);
    return &(*stack)[stack->size() - arguments.size() + place];
  };
  std::optional<at::ScalarType> beside;
  if (!agreement.beside.empty()) beside = value(agreement.beside)->toTensor().scalar_type();
  for (const std::string& argument : agreement.wide) {
    widen_halves(*value(argument), beside, agreement.type);
  }
  for (const std::string& argument : agreement.lower) lower(*value(argument));
  for (const auto& names : agreement.together) {
    std::vector<c10::IValue*> values;
    for (const std::string& argument : names) values.push_back(value(argument));
    widen_together(values);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast{c10::autocast_dispatch_keyset};
  op.callBoxed(stack);
}

}  // namespace

void register_autocast(const std::string& op, Agreement agreement) {
  static torch::Library cpu(torch::Library::IMPL, "torchvox", c10::DispatchKey::AutocastCPU,
                            __FILE__, __LINE__);
  static torch::Library cuda(torch::Library::IMPL, "torchvox", c10::DispatchKey::AutocastCUDA,
                             __FILE__, __LINE__);
  agreements()[op] = std::move(agreement);
  for (torch::Library* library : {&cpu, &cuda}) {
    library->impl(op.c_str(), torch::CppFunction::makeFromBoxedFunction<&autocast_kernel>());
  }
}

}  // namespace torchvox
