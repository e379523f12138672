// SPDX-License-Identifier: Apache-2.0
//
// Runs a model that AOTInductor compiled and packaged, without Python:
//   aoti_runner model.pt2 cloud.bin columns outputs.pt
// The package does not contain torchvox: the ops come from libtorchvox.so, which is linked here and
// registers them before main. (A program that does not link it calls dlopen on it before it loads
// the package.) The model takes points [N, columns] and batch_offsets [2].
#include <c10/core/InferenceMode.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torchvox/torchvox.h>

#include "../cloud.h"

namespace {

void run(const char* package, const char* cloud_path, int64_t columns, const char* out_path) {
  const c10::InferenceMode no_gradients;
  torch::inductor::AOTIModelPackageLoader model(package);
  const at::Tensor points = read_cloud(cloud_path, columns);
  write_outputs(model.run({points, offsets_of(points)}), out_path);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: aoti_runner model.pt2 cloud.bin columns outputs.pt\n";
    return 2;
  }
  try {
    run(argv[1], argv[2], std::stol(argv[3]), argv[4]);
  } catch (const std::exception& error) {
    std::cerr << "aoti_runner: " << sentence_of(error) << "\n";
    return 1;
  }
  return 0;
}
