// SPDX-License-Identifier: Apache-2.0
//
// Raw points to boxes with a detector that torchvox export wrote, without Python:
//   detector_runner model columns outputs.pt scan.bin...
// The model takes points [B, N, columns] and num_points [B] and gives boxes [B, K, 7 or 9], scores,
// labels, count and overflow; rows past a count do not exist. Prints the time per scan.
#include <iomanip>

#include "program.h"

namespace {

enum Output { kBoxes, kScores, kLabels, kCount, kOverflow, kOutputs };

// The boxes of a scan with the highest scores: x, y, z of the center, l, w, h, yaw.
void print_best(const std::vector<at::Tensor>& outputs, int64_t scan, int64_t most) {
  const at::Tensor scores = outputs[kScores][scan];
  const int64_t count = outputs[kCount][scan].item<int32_t>();
  const at::Tensor order = scores.narrow(0, 0, count).argsort(/*dim=*/0, /*descending=*/true);
  for (int64_t i = 0; i < std::min(count, most); ++i) {
    const auto row = order[i].item<int64_t>();
    std::cout << "  class " << outputs[kLabels][scan][row].item<int32_t>() << " score "
              << scores[row].item<float>() << " at";
    for (int64_t axis = 0; axis < 3; ++axis) {
      std::cout << " " << outputs[kBoxes][scan][row][axis].item<float>();
    }
    std::cout << "\n";
  }
}

void detect(const std::vector<std::string>& arguments) {
  const std::vector<std::string> paths{arguments.begin() + 3, arguments.end()};
  const auto [points, num_points] = read_batch(paths, std::stol(arguments[1]), at::kInt);
  double milliseconds = 0;
  const std::vector<at::Tensor> outputs =
      run_model(arguments[0], {points, num_points}, &milliseconds);
  if (outputs.size() != kOutputs) {
    throw std::runtime_error(arguments[0] + " is no detector: it gives " +
                             std::to_string(outputs.size()) +
                             " outputs, not boxes, scores, labels, count and overflow");
  }
  std::cout << std::fixed << std::setprecision(3);
  for (size_t i = 0; i < paths.size(); ++i) {
    const auto scan = static_cast<int64_t>(i);
    std::cout << paths[i] << ": " << num_points[scan].item<int32_t>() << " points, "
              << outputs[kCount][scan].item<int32_t>() << " boxes, "
              << outputs[kOverflow][scan].item<int32_t>() << " candidates past the cap\n";
    print_best(outputs, scan, 3);
  }
  std::cout << milliseconds / static_cast<double>(paths.size()) << " ms per scan\n";
  write_outputs(outputs, arguments[2]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string usage = "detector_runner model columns outputs.pt scan.bin...";
  return run_program({argv, argv + argc}, usage, detect);
}
