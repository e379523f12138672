// SPDX-License-Identifier: Apache-2.0
//
// Runs a TorchScript model that calls torchvox ops, without Python:
//   torchscript_runner model.pt cloud.bin columns outputs.pt
// The model's forward takes points [N, columns] and batch_offsets [2] and returns a tuple of
// tensors.
#include <c10/core/InferenceMode.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torchvox/torchvox.h>  // keeps the library linked, so that its ops are registered

#include "../cloud.h"

namespace {

void run(const char* model_path, const char* cloud_path, int64_t columns, const char* out_path) {
  const c10::InferenceMode no_gradients;
  torch::jit::Module model = torch::jit::load(model_path);
  model.eval();
  const at::Tensor points = read_cloud(cloud_path, columns);
  const c10::IValue result = model.forward({points, offsets_of(points)});
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& value : result.toTupleRef().elements()) {
    outputs.push_back(value.toTensor());
  }
  write_outputs(outputs, out_path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: torchscript_runner model.pt cloud.bin columns outputs.pt\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], std::stol(argv[3]), argv[4]);
  } catch (const std::exception& error) {
    std::cerr << "torchscript_runner: " << sentence_of(error) << "\n";
    return 1;
  }
  return 0;
}
