// SPDX-License-Identifier: Apache-2.0
//
// Raw points to boxes with a detector that torchvox export wrote, without Python:
//   detector_runner model columns outputs.pt scan.bin...
// The model is TorchScript (.pt) or a package of AOTInductor (.pt2). It takes points
// [B, N, columns] and num_points [B] and gives boxes [B, K, 7 or 9], scores, labels, count and
// overflow. Scans may differ in size and may be empty: a batch is padded to the largest one, and
// rows past a count do not exist.
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torchvox/torchvox.h>  // keeps the library linked, so that its ops are registered

#include <algorithm>
#include <iomanip>

#include "../cloud.h"

namespace {

enum Output { kBoxes, kScores, kLabels, kCount, kOverflow, kOutputs };

struct Batch {
  at::Tensor points;  // [B, N, columns], zeros past the counts
  at::Tensor num_points;  // [B] int32
};

Batch read_batch(const std::vector<std::string>& paths, int64_t columns) {
  std::vector<at::Tensor> scans;
  int64_t most = 2;  // a program of torch.export takes no fewer rows
  for (const std::string& path : paths) {
    scans.push_back(read_cloud(path, columns));
    most = std::max(most, scans.back().size(0));
  }
  const auto count = static_cast<int64_t>(scans.size());
  Batch batch{at::zeros({count, most, columns}), at::zeros({count}, at::kInt)};
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& scan = scans[static_cast<size_t>(i)];
    batch.points[i].narrow(0, 0, scan.size(0)).copy_(scan);
    batch.num_points[i] = scan.size(0);
  }
  return batch;
}

std::vector<at::Tensor> run_model(const std::string& path, const Batch& batch) {
  if (path.size() > 4 && path.substr(path.size() - 4) == ".pt2") {
    torch::inductor::AOTIModelPackageLoader model(path);
    return model.run({batch.points, batch.num_points});
  }
  torch::jit::Module model = torch::jit::load(path);
  model.eval();
  const c10::IValue result = model.forward({batch.points, batch.num_points});
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& value : result.toTupleRef().elements()) {
    outputs.push_back(value.toTensor());
  }
  return outputs;
}

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

void detect(const std::string& model, int64_t columns, const std::string& out,
            const std::vector<std::string>& paths) {
  const c10::InferenceMode no_gradients;
  const Batch batch = read_batch(paths, columns);
  const std::vector<at::Tensor> outputs = run_model(model, batch);
  if (outputs.size() != kOutputs) {
    throw std::runtime_error(model + " is no detector: it gives " + std::to_string(outputs.size()) +
                             " outputs, not boxes, scores, labels, count and overflow");
  }
  std::cout << std::fixed << std::setprecision(3);
  for (size_t i = 0; i < paths.size(); ++i) {
    const auto scan = static_cast<int64_t>(i);
    std::cout << paths[i] << ": " << batch.num_points[scan].item<int32_t>() << " points, "
              << outputs[kCount][scan].item<int32_t>() << " boxes, "
              << outputs[kOverflow][scan].item<int32_t>() << " candidates past the cap\n";
    print_best(outputs, scan, 3);
  }
  write_outputs(outputs, out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: detector_runner model columns outputs.pt scan.bin...\n";
    return 2;
  }
  try {
    detect(argv[1], std::stol(argv[2]), argv[3], {argv + 4, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "detector_runner: " << sentence_of(error) << "\n";
    return 1;
  }
  return 0;
}
