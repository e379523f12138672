// SPDX-License-Identifier: Apache-2.0
//
// Boxes of a scan from an ONNX file of `torchvox export --format onnx`: no torch, no Python.
//   onnx_runner model.onnx libtorchvox_onnx.so scan.bin columns boxes.bin
// scan.bin has rows of float32 columns; boxes.bin gets rows of x, y, z, l, w, h, yaw (, vx, vy),
// score and label as float32. It prints how many.
#include <onnxruntime_c_api.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

const OrtApi* const ort = OrtGetApiBase()->GetApi(18);

void require(OrtStatus* status) {
  if (status == nullptr) return;
  std::cerr << ort->GetErrorMessage(status) << '\n';
  std::exit(1);
}

OrtValue* tensor(void* data, size_t bytes, std::vector<int64_t> shape,
                 ONNXTensorElementDataType type) {
  OrtMemoryInfo* memory = nullptr;
  require(ort->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  OrtValue* value = nullptr;
  require(ort->CreateTensorWithDataAsOrtValue(memory, data, bytes, shape.data(), shape.size(), type,
                                              &value));
  ort->ReleaseMemoryInfo(memory);
  return value;
}

template <class T>
const T* data(OrtValue* value) {
  void* memory = nullptr;
  require(ort->GetTensorMutableData(value, &memory));
  return static_cast<const T*>(memory);
}

// The last size of a tensor.
int64_t width(OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  require(ort->GetTensorTypeAndShape(value, &info));
  size_t rank = 0;
  require(ort->GetDimensionsCount(info, &rank));
  std::vector<int64_t> sizes(rank);
  require(ort->GetDimensions(info, sizes.data(), rank));
  ort->ReleaseTensorTypeAndShapeInfo(info);
  return sizes.back();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::cerr << "usage: onnx_runner model.onnx libtorchvox_onnx.so scan.bin columns boxes.bin\n";
    return 2;
  }
  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  OrtSession* session = nullptr;
  void* library = nullptr;
  require(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "torchvox", &env));
  require(ort->CreateSessionOptions(&options));
  require(ort->RegisterCustomOpsLibrary(options, argv[2], &library));
  require(ort->CreateSession(env, argv[1], options, &session));

  std::ifstream file(argv[3], std::ios::binary);
  std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const int64_t columns = std::atoll(argv[4]);
  const auto rows = static_cast<int64_t>(bytes.size()) / (4 * columns);
  auto count = static_cast<int32_t>(rows);
  OrtValue* inputs[] = {
      tensor(bytes.data(), bytes.size(), {1, rows, columns}, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT),
      tensor(&count, sizeof(count), {1}, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32)};
  const char* const names[] = {"points", "num_points"};
  const char* const wanted[] = {"boxes", "scores", "labels", "count"};
  OrtValue* outputs[4] = {};
  require(ort->Run(session, nullptr, names, inputs, 2, wanted, 4, outputs));

  const int64_t values = width(outputs[0]);
  const int32_t boxes = *data<int32_t>(outputs[3]);
  std::ofstream out(argv[5], std::ios::binary);
  for (int32_t i = 0; i < boxes; ++i) {
    const float more[] = {data<float>(outputs[1])[i],
                          static_cast<float>(data<int32_t>(outputs[2])[i])};
    out.write(reinterpret_cast<const char*>(data<float>(outputs[0]) + i * values), 4 * values);
    out.write(reinterpret_cast<const char*>(more), sizeof(more));
  }
  std::cout << boxes << " boxes\n";
  for (OrtValue* value : inputs) ort->ReleaseValue(value);
  for (OrtValue* value : outputs) ort->ReleaseValue(value);
  ort->ReleaseSession(session);
  ort->ReleaseSessionOptions(options);
  ort->ReleaseEnv(env);
  return 0;
}
