// SPDX-License-Identifier: Apache-2.0
//
// CPU-only build: every op's CUDA key raises one readable sentence.
#include <torch/library.h>

#include <string>

#include "csrc/ops/core/device.h"
#include "csrc/ops/library.h"

namespace torchvox {
namespace {

void not_built(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op.schema().name(),
      ": this torchvox was built without CUDA; move the tensors to the CPU, or rebuild torchvox "
      "with the CUDA toolkit's nvcc on PATH (TORCHVOX_CUDA=1 says why when that fails)");
}

TORCH_LIBRARY_IMPL(torchvox, CUDA, m) {
  if (kBuiltWithCuda) return;
  for (const std::string schema : schemas()) {
    m.impl(schema.substr(0, schema.find('(')).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&not_built>());
  }
}

}  // namespace
}  // namespace torchvox
