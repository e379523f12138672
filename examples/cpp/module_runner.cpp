// SPDX-License-Identifier: Apache-2.0
//
// Runs any model that calls torchvox ops, without Python:
//   module_runner model cloud.bin columns outputs.pt
// The model takes points [N, columns] and batch_offsets [2] and returns a tuple of tensors.
#include <ATen/ops/tensor.h>

#include "program.h"

namespace {

void run(const std::vector<std::string>& arguments) {
  const at::Tensor points = read_cloud(arguments[1], std::stol(arguments[2]));
  // One cloud is a batch of one: its rows are [0, N).
  const at::Tensor offsets = at::tensor({int64_t{0}, points.size(0)}, at::kLong);
  write_outputs(run_model(arguments[0], {points, offsets}), arguments[3]);
}

}  // namespace

int main(int argc, char** argv) {
  return run_program({argv, argv + argc}, "module_runner model cloud.bin columns outputs.pt", run);
}
