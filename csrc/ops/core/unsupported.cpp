// SPDX-License-Identifier: Apache-2.0
//
// Where an op has no kernel it raises one readable sentence: under the CUDA key of a CPU-only
// build, and under every other key without a kernel (sparse, quantized and nested tensors, other
// devices, no tensor at all).
#include <torch/library.h>

#include <string>
#include <vector>

#include "csrc/ops/core/checks.h"
#include "csrc/ops/core/device.h"

namespace torchvox {
namespace {

void not_built(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(),
      ": this torchvox was built without CUDA; move the tensors to the CPU, or rebuild torchvox "
      "with the CUDA toolkit's nvcc on PATH (TORCHVOX_CUDA=1 says why when that fails)");
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto values = torch::jit::last(*stack, arguments.size());
  const std::string name = op.schema().name().substr(op.schema().name().find("::") + 2);
  std::string list, device;
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::vector<Tensor> tensors;
    if (values[i].isTensor()) tensors.push_back(values[i].toTensor());
    if (values[i].isTensorList()) tensors = values[i].toTensorVector();
    if (values[i].isTensorList() && list.empty()) list = arguments[i].name();
    for (const Tensor& tensor : tensors) {
      check_dense(name.c_str(), arguments[i].name().c_str(), tensor);
      device = tensor.device().str();
    }
  }
  check_value(!device.empty(), name.c_str(), {list.c_str(), " must have a tensor or more"}, "none");
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, refusal(name.c_str(), "tensors must be on the CPU or on a CUDA device", device));
}

// Ops without a tensor run anywhere.
template <auto* kernel>
void register_for_tensors(torch::Library& m) {
  for (const std::string& schema : schemas()) {
    if (schema.find("Tensor") == std::string::npos) continue;
    m.impl(schema.substr(0, schema.find('(')).c_str(),
           torch::CppFunction::makeFromBoxedFunction<kernel>());
  }
}

TORCH_LIBRARY_IMPL(torchvox, CUDA, m) {
  if (!kBuiltWithCuda) register_for_tensors<&not_built>(m);
}
TORCH_LIBRARY_IMPL(torchvox, CompositeExplicitAutograd, m) { register_for_tensors<&refuse>(m); }
// That key leaves nested tensors out.
TORCH_LIBRARY_IMPL(torchvox, NestedTensorCPU, m) { register_for_tensors<&refuse>(m); }
TORCH_LIBRARY_IMPL(torchvox, NestedTensorCUDA, m) { register_for_tensors<&refuse>(m); }

}  // namespace
}  // namespace torchvox
