// SPDX-License-Identifier: Apache-2.0
//
// Classifies a batch of clouds with a model that torchvox export wrote, without Python:
//   classifier_runner model columns scores.pt cloud.bin...
// The model takes points [B, N, columns] and lengths [B] and gives scores [B, classes], or
// [B, N, classes] where it labels points: then the class with the highest sum is printed.
#include "program.h"

namespace {

void classify(const std::vector<std::string>& arguments) {
  const std::vector<std::string> paths{arguments.begin() + 3, arguments.end()};
  const auto [points, lengths] = read_batch(paths, std::stol(arguments[1]), at::kLong);
  const at::Tensor scores = run_model(arguments[0], {points, lengths}).at(0);
  const at::Tensor best = scores.reshape({scores.size(0), -1, scores.size(-1)}).sum(1).argmax(-1);
  for (size_t i = 0; i < paths.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    std::cout << paths[i] << ": " << lengths[row].item<int64_t>() << " points, class "
              << best[row].item<int64_t>() << "\n";
  }
  write_outputs({scores}, arguments[2]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string usage = "classifier_runner model columns scores.pt cloud.bin...";
  return run_program({argv, argv + argc}, usage, classify);
}
