// SPDX-License-Identifier: Apache-2.0
//
// Classifies a batch of clouds with a model that torchvox export wrote, without Python:
//   classifier_runner model columns scores.pt cloud.bin...
// The model is TorchScript (.pt) or a package of AOTInductor (.pt2). It takes points
// [B, N, columns] and lengths [B] and gives scores [B, classes]. Clouds may differ in size and may
// be empty: they are padded to the largest one.
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torchvox/torchvox.h>  // keeps the library linked, so that its ops are registered

#include <algorithm>

#include "../cloud.h"

namespace {

struct Batch {
  at::Tensor points;  // [B, N, columns], zeros past the lengths
  at::Tensor lengths;  // [B] int64
};

Batch read_batch(const std::vector<std::string>& paths, int64_t columns) {
  std::vector<at::Tensor> clouds;
  int64_t most = 2;  // a program of torch.export takes no fewer rows
  for (const std::string& path : paths) {
    clouds.push_back(read_cloud(path, columns));
    most = std::max(most, clouds.back().size(0));
  }
  const auto count = static_cast<int64_t>(clouds.size());
  Batch batch{at::zeros({count, most, columns}), at::zeros({count}, at::kLong)};
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& cloud = clouds[static_cast<size_t>(i)];
    batch.points[i].narrow(0, 0, cloud.size(0)).copy_(cloud);
    batch.lengths[i] = cloud.size(0);
  }
  return batch;
}

at::Tensor run_model(const std::string& path, const Batch& batch) {
  if (path.size() > 4 && path.substr(path.size() - 4) == ".pt2") {
    torch::inductor::AOTIModelPackageLoader model(path);
    return model.run({batch.points, batch.lengths}).at(0);
  }
  torch::jit::Module model = torch::jit::load(path);
  model.eval();
  return model.forward({batch.points, batch.lengths}).toTensor();
}

void classify(const std::string& model, int64_t columns, const std::string& out,
              const std::vector<std::string>& clouds) {
  const c10::InferenceMode no_gradients;
  const Batch batch = read_batch(clouds, columns);
  const at::Tensor scores = run_model(model, batch);
  const at::Tensor best = scores.argmax(-1);
  for (size_t i = 0; i < clouds.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    std::cout << clouds[i] << ": " << batch.lengths[row].item<int64_t>() << " points, class "
              << best[row].item<int64_t>() << "\n";
  }
  write_outputs({scores}, out);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::cerr << "usage: classifier_runner model columns scores.pt cloud.bin...\n";
    return 2;
  }
  try {
    classify(argv[1], std::stol(argv[2]), argv[3], {argv + 4, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << "classifier_runner: " << sentence_of(error) << "\n";
    return 1;
  }
  return 0;
}
