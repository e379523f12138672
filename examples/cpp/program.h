// SPDX-License-Identifier: Apache-2.0
//
// What the programs on top of torch share: clouds in, a model, outputs in a file, errors in a
// sentence.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torchvox/torchvox.h>  // keeps the library linked, so that its ops are registered

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// A file of float32 rows, as KITTI and nuScenes store scans: [N, columns].
inline at::Tensor read_cloud(const std::string& path, int64_t columns) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const auto row = columns * static_cast<int64_t>(sizeof(float));
  const auto size = static_cast<int64_t>(bytes.size());
  if (columns < 3 || size % row != 0) {
    throw std::runtime_error(path + " has " + std::to_string(size) + " bytes, not rows of " +
                             std::to_string(columns) + " float32 columns");
  }
  return at::from_blob(bytes.data(), {size / row, columns}, at::kFloat).clone();
}

// Clouds of any size, empty ones too, padded with zeros: points [B, N, columns] and the number of
// points of each [B], of a type.
inline std::pair<at::Tensor, at::Tensor> read_batch(const std::vector<std::string>& paths,
                                                    int64_t columns, at::ScalarType type) {
  std::vector<at::Tensor> clouds;
  int64_t most = 2;  // a program of torch.export takes no fewer rows
  for (const std::string& path : paths) {
    clouds.push_back(read_cloud(path, columns));
    most = std::max(most, clouds.back().size(0));
  }
  const auto count = static_cast<int64_t>(clouds.size());
  at::Tensor points = at::zeros({count, most, columns}), sizes = at::zeros({count}, type);
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& cloud = clouds[static_cast<size_t>(i)];
    points[i].narrow(0, 0, cloud.size(0)).copy_(cloud);
    sizes[i] = cloud.size(0);
  }
  return {points, sizes};
}

// The outputs of a model: TorchScript (.pt) or a package of AOTInductor (.pt2). A package does not
// contain torchvox: the ops come from libtorchvox.so, which is linked here and registers them
// before main. (A program that does not link it calls dlopen on it before it loads the package.)
// milliseconds: if asked for, the median of three further runs after one more to warm up.
inline std::vector<at::Tensor> run_model(const std::string& path,
                                         const std::vector<at::Tensor>& inputs,
                                         double* milliseconds = nullptr) {
  std::function<c10::IValue()> run;
  if (path.size() > 4 && path.substr(path.size() - 4) == ".pt2") {
    const auto loader = std::make_shared<torch::inductor::AOTIModelPackageLoader>(path);
    run = [loader, &inputs] {
      const std::vector<at::Tensor> outputs = loader->run(inputs);
      return c10::ivalue::Tuple::create({outputs.begin(), outputs.end()});
    };
  } else {
    torch::jit::Module model = torch::jit::load(path);
    model.eval();
    run = [model, &inputs]() mutable { return model.forward({inputs.begin(), inputs.end()}); };
  }
  const c10::IValue result = run();
  if (milliseconds != nullptr) {
    std::array<double, 3> times{};
    run();
    for (double& time : times) {
      const auto start = std::chrono::steady_clock::now();
      run();
      const auto end = std::chrono::steady_clock::now();
      time = std::chrono::duration<double, std::milli>(end - start).count();
    }
    std::sort(times.begin(), times.end());
    *milliseconds = times[1];
  }
  if (result.isTensor()) return {result.toTensor()};
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& value : result.toTupleRef().elements()) {
    outputs.push_back(value.toTensor());
  }
  return outputs;
}

// Prints each output and writes all of them to a file that torch.load reads as a tuple.
inline void write_outputs(const std::vector<at::Tensor>& outputs, const std::string& path) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    std::cout << "output " << i << ": " << outputs[i].scalar_type() << " " << outputs[i].sizes()
              << "\n";
  }
  const auto tuple = c10::ivalue::Tuple::create({outputs.begin(), outputs.end()});
  const std::vector<char> bytes = torch::jit::pickle_save(tuple);
  std::ofstream file(path, std::ios::binary);
  if (!file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()))) {
    throw std::runtime_error("cannot write " + path);
  }
}

// What went wrong, without the frames that torch and its interpreter put around the sentence.
inline std::string sentence_of(const std::exception& error) {
  const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
  std::string text = of_torch ? of_torch->what_without_backtrace() : error.what();
  const std::string frames = "Traceback of TorchScript", last = "Error: ";
  if (text.find(frames) == std::string::npos) return text;
  const size_t end = text.rfind(last);
  return end == std::string::npos ? text : text.substr(end + last.size());
}

// main of a program: runs `work` on the arguments, of which the usage names each; a word that ends
// in ... stands for one or more. The exit code is 1 for an error, which is printed, and 2 for wrong
// use.
template <class Work>
int run_program(const std::vector<std::string>& arguments, const std::string& usage, Work work) {
  const std::string name = usage.substr(0, usage.find(' '));
  const auto words = static_cast<size_t>(std::count(usage.begin(), usage.end(), ' ')) + 1;
  const bool more = usage.back() == '.';
  if (more ? arguments.size() < words : arguments.size() != words) {
    std::cerr << "usage: " << usage << "\n";
    return 2;
  }
  try {
    const c10::InferenceMode no_gradients;
    work({arguments.begin() + 1, arguments.end()});
  } catch (const std::exception& error) {
    std::cerr << name << ": " << sentence_of(error) << "\n";
    return 1;
  }
  return 0;
}
