// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes what the two torch programs share: a cloud in, named tensors out.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
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

// One cloud is a batch of one: its rows are [0, N).
inline at::Tensor offsets_of(const at::Tensor& cloud) {
  return at::tensor({int64_t{0}, cloud.size(0)}, at::kLong);
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
