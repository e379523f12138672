// SPDX-License-Identifier: Apache-2.0
//
// What harness.h declares, and main(). Arguments: part of the names of the cases to run, and
// --every-float.
#include "tests/cpp/harness.h"

#include <cstdio>
#include <cstdlib>
#include <thread>

namespace torchvox::testing {
namespace {

int failures = 0;

std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

uint64_t fnv1a(const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

std::vector<uint8_t> run_on(Where where, const Case& c) {
  Side side(where);
  c.run(side);
  return side.bytes();
}

void run_case(const Case& c) {
  const std::vector<uint8_t> expected = run_on(Where::kThread, c);
  if (c.checksum != kUnspecified && fnv1a(expected) != c.checksum) {
    ++failures;
    std::printf("%s: the checksum is 0x%016llx\n", c.name,
                static_cast<unsigned long long>(fnv1a(expected)));
  }
  if (expected.empty()) return;  // a test without a call
  std::vector<ForcedPlans> all = c.plans;
  all.push_back({nullptr, {kAutomatic}});
  for (const ForcedPlans& plan : all) {
    for (const int64_t value : plan.values) {
      if (plan.name) CHECK(set_plan_override(plan.name, value));
      for (const Where where : {Where::kThread, Where::kThreads, Where::kDevice}) {
        if (where == Where::kDevice && !has_device()) continue;
        if (run_on(where, c) == expected || c.checksum == kUnspecified) continue;
        ++failures;
        const char* const names[] = {"one thread", "two threads", "the GPU"};
        std::printf("%s: %s gives other bytes, plan %s = %d\n", c.name,
                    names[static_cast<int>(where)], plan.name ? plan.name : "automatic",
                    static_cast<int>(value));
      }
    }
    if (plan.name) set_plan_override(plan.name, kAutomatic);
  }
}

}  // namespace

bool add_case(const Case& c) {
  cases().push_back(c);
  return true;
}

void check(bool condition, const char* text, const char* file, int line) {
  if (condition) return;
  std::printf("%s:%d: %s\n", file, line, text);
  ++failures;
}

#ifdef TORCHVOX_CUDA
void check_cuda(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

const CudaContext& device() {
  static const CudaContext context = [] {
    CudaContext first;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return first;
    cudaDeviceProp properties;
    check_cuda(cudaGetDeviceProperties(&properties, 0));
    check_cuda(cudaStreamCreateWithFlags(&first.stream, cudaStreamNonBlocking));
    first.target.cuda = true;
    first.target.multiprocessors = properties.multiProcessorCount;
    first.target.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
    first.target.compute_capability = 10 * properties.major + properties.minor;
    first.target.cooperative_launch = properties.cooperativeLaunch != 0;
    return first;
  }();
  return context;
}
bool has_device() { return device().target.cuda; }
#else
bool has_device() { return false; }
#endif

void backward_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  const auto run = [&](int64_t first) {
    for (int64_t i = count - 1 - first; i >= 0; i -= 2) body(i, i + 1);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

Side::~Side() {
#ifdef TORCHVOX_CUDA
  for (const Buffer& buffer : buffers_) cudaFree(buffer.device);
#endif
}

void* Side::add(std::vector<uint8_t> bytes, bool compared) {
  buffers_.push_back({std::move(bytes), compared});
  Buffer& buffer = buffers_.back();
#ifdef TORCHVOX_CUDA
  const size_t size = buffer.bytes.size();
  if (is_device() && size > 0) {
    check_cuda(cudaMalloc(&buffer.device, size));
    check_cuda(cudaMemcpy(buffer.device, buffer.bytes.data(), size, cudaMemcpyHostToDevice));
    return buffer.device;
  }
#endif
  return buffer.bytes.data();
}

std::vector<uint8_t> Side::bytes() {
  std::vector<uint8_t> all;
  for (Buffer& buffer : buffers_) {
    if (!buffer.compared) continue;
    std::vector<uint8_t>& bytes = buffer.bytes;
#ifdef TORCHVOX_CUDA
    if (buffer.device) {
      check_cuda(cudaMemcpy(bytes.data(), buffer.device, bytes.size(), cudaMemcpyDeviceToHost));
    }
#endif
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

std::vector<float> make_points(int64_t points, int64_t columns, float reach, uint64_t seed) {
  std::vector<float> values = Random(seed).uniforms(points * columns, -reach, reach);
  for (size_t i = 0; i < values.size() / 2; ++i) values[i] = std::floor(values[i] * 2) / 2;
  const float special[] = {kNan, std::numeric_limits<float>::infinity(), -0.f, 1e30f};
  for (size_t i = 1; i < values.size(); i += 101) values[i] = special[i % 4];
  return values;
}

std::vector<float> make_boxes(int64_t count, int64_t columns, float reach, uint64_t seed) {
  Random random(seed);
  std::vector<float> boxes;
  for (int64_t i = 0; i < count; ++i) {
    std::vector<float> box = random.uniforms(columns, 0, reach);
    box[2] = random.uniform(-1, 1);
    for (int k = 3; k < 6; ++k) box[k] = random.uniform(0.5f, 4);
    if (i % 2) {
      for (int k = 0; k < 2; ++k) box[k] = std::floor(box[k] * 2) / 2;
      box[3] = 4, box[4] = 2;
      box[6] = 1.57f * static_cast<float>(i % 3);
    }
    const float bad[] = {0, -1, kNan, 1e30f};
    if (i % 12 == 7) box[random.below(7)] = bad[random.below(4)];
    boxes.insert(boxes.end(), box.begin(), box.end());
  }
  return boxes;
}

std::vector<float> make_anchors(int64_t height, int64_t width, int64_t per_cell) {
  std::vector<float> anchors;
  for (int64_t i = 0; i < height * width * per_cell; ++i) {
    const int64_t x = i / per_cell % width, y = i / per_cell / width;
    anchors.insert(anchors.end(),
                   {0.5f * static_cast<float>(x), 0.5f * static_cast<float>(y), 0, 4, 2, 1.5f,
                    i % 2 ? 1.57f : 0});
  }
  return anchors;
}

CloudBatch padded(Side& side, const std::vector<float>& values, int64_t clouds, int64_t columns) {
  CloudBatch batch;
  batch.data = side.put(values);
  batch.clouds = clouds;
  batch.rows = static_cast<int64_t>(values.size()) / (clouds * columns);
  batch.columns = batch.row_stride = columns;
  batch.cloud_stride = batch.rows * columns;
  return batch;
}

CloudBatch packed(Side& side, const std::vector<float>& values, int64_t columns,
                  const std::vector<int64_t>& offsets) {
  CloudBatch batch = padded(side, values, 1, columns);
  batch.packed = true;
  batch.offsets = {side.put(offsets), true};
  if (!offsets.empty()) batch.clouds = static_cast<int64_t>(offsets.size()) - 1;
  return batch;
}

}  // namespace torchvox::testing

int main(int argc, char** argv) {
  const char* part = "";
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    every_float = every_float || std::strcmp(argv[i], "--every-float") == 0;
    if (argv[i][0] != '-') part = argv[i];
  }
  for (const Case& c : cases()) {
    if (!std::strstr(c.name, part)) continue;
    ++count;
    run_case(c);
  }
  std::printf("%d cases%s, %d failures\n", count, has_device() ? "" : " on the CPU", failures);
  return failures > 0 || count == 0;
}
