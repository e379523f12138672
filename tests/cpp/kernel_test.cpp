// SPDX-License-Identifier: Apache-2.0
//
// What kernel_test.h declares, and the main of every kernel test: doctest's, and `--quick`.
#define DOCTEST_CONFIG_IMPLEMENT
#define DOCTEST_CONFIG_NO_POSIX_SIGNALS  // a crash is the sanitizer's to report
#include "tests/cpp/kernel_test.h"

#include <cstdio>
#include <thread>

namespace torchvox::testing {

Bytes store(const std::vector<double>& values, DType dtype) {
  return with_point_type(dtype,
                         [&](auto type) { return bytes_of(narrowed<decltype(type)>(values)); });
}

std::string difference(const Bytes& got, const Bytes& want, size_t size, Show show) {
  if (got == want) return "";
  if (got.size() != want.size()) {
    return "size " + std::to_string(got.size() / size) + ", not " +
        std::to_string(want.size() / size);
  }
  size_t i = 0;
  while (std::memcmp(&got[i], &want[i], size) == 0) i += size;
  return "[" + std::to_string(i / size) + "] of " + std::to_string(want.size() / size) + " is " +
      show(&got[i]) + ", not " + show(&want[i]);
}

#ifdef TORCHVOX_CUDA
void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

const CudaContext& device() {
  static const CudaContext context = [] {
    CudaContext found;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return found;
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    check_cuda(cudaStreamCreateWithFlags(&found.stream, cudaStreamNonBlocking), "a stream");
    found.target.cuda = true;
    found.target.multiprocessors = properties.multiProcessorCount;
    found.target.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
    found.target.compute_capability = 10 * properties.major + properties.minor;
    found.target.cooperative_launch = properties.cooperativeLaunch != 0;
    return found;
  }();
  return context;
}
#endif

void backward_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  const auto run = [&](int64_t first) {
    for (int64_t i = count - 1 - first; i >= 0; i -= 2) body(i, i + 1);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

std::string difference(const Outputs& got, const Outputs& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].show) continue;
    const auto found = difference(got[i].bytes, want[i].bytes, want[i].element, want[i].show);
    if (!found.empty()) return want[i].name + found;
  }
  return "";
}

Side::~Side() {
#ifdef TORCHVOX_CUDA
  for (const Buffer& buffer : buffers_) cudaFree(buffer.device);
#endif
}

Outputs Side::take_outputs() {
#ifdef TORCHVOX_CUDA
  for (Buffer& buffer : buffers_) {
    if (!buffer.device) continue;
    check_cuda(
        cudaMemcpy(buffer.bytes.data(), buffer.device, buffer.bytes.size(), cudaMemcpyDeviceToHost),
        "copy");
    cudaFree(std::exchange(buffer.device, nullptr));
  }
#endif
  return std::exchange(buffers_, {});
}

void* Side::add(Buffer buffer) {
  void* data = buffer.bytes.data();
#ifdef TORCHVOX_CUDA
  if (is_device()) {
    const size_t size = buffer.bytes.size();
    if (size > 0) {
      check_cuda(cudaMalloc(&buffer.device, size), "memory");
      check_cuda(cudaMemcpy(buffer.device, data, size, cudaMemcpyHostToDevice), "copy");
    }
    data = buffer.device;
  }
#endif
  buffers_.push_back(std::move(buffer));
  return data;
}

std::vector<double> make_cloud(Cloud kind, int64_t points, int64_t dims, Random& random) {
  std::vector<double> out;
  for (int64_t i = 0; i < points * dims; ++i) {
    const int64_t point = i / dims, axis = i % dims;
    double x = random.uniform(-1, 1);
    switch (kind) {
      case Cloud::kCube: break;
      case Cloud::kLattice: x = static_cast<double>(random.below(6)); break;
      case Cloud::kEqual: x = 0.25; break;
      case Cloud::kLine: x = axis == 0 ? x : 0.0; break;
      case Cloud::kHuge: x = static_cast<float>(x * 3e38); break;
      case Cloud::kNonFinite:
        if (random.below(8) == 0) x = random.below(2) ? kNan : kInfinity;
        break;
      case Cloud::kScales: x *= std::pow(10.0, static_cast<double>(random.below(40) - 20)); break;
      case Cloud::kGrid: {
        const int64_t at[] = {point / 400, point / 20 % 20, point % 20};
        x = static_cast<double>(at[axis < 2 ? axis : 2]);
        break;
      }
      case Cloud::kDuplicates: x = static_cast<double>(random.below(2)); break;
      case Cloud::kOrigin: x *= 0.05; break;
      case Cloud::kAllNan: x = kNan; break;
    }
    out.push_back(x);
  }
  return out;
}

Clouds padded(const std::vector<double>& values, int64_t clouds, int64_t rows, int64_t columns,
              DType dtype) {
  Clouds c;
  c.batch.dtype = dtype;
  c.batch.clouds = clouds;
  c.batch.rows = rows;
  c.batch.columns = c.batch.row_stride = columns;
  c.batch.cloud_stride = rows * columns;
  c.points = store(values, dtype);
  return c;
}

CloudBatch Clouds::on(Side& side) const {
  CloudBatch bound = batch;
  bound.data = side.put(points);
  bound.lengths = side.put(lengths, wide);
  bound.offsets = side.put(offsets, wide);
  return bound;
}

IndexArray Side::put(const std::vector<int64_t>& values, bool wide) {
  if (wide) return {put(values), true};
  return {put(std::vector<int32_t>(values.begin(), values.end())), false};
}

}  // namespace torchvox::testing

int main(int argc, char** argv) {
  using namespace torchvox::testing;
  for (int i = 1; i < argc; ++i) quick = quick || std::strcmp(argv[i], "--quick") == 0;
  if (!has_device()) std::puts("no GPU: host only");
  return doctest::Context(argc, argv).run();
}
