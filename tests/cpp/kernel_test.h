// SPDX-License-Identifier: Apache-2.0
//
// What the kernel tests share: doctest; a call run in one thread, in two and on the GPU, whose
// outputs must agree bit for bit; random clouds. No torch, so that every sanitizer can run them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "csrc/kernels/core/arith.h"
#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/core/target.h"

#define DOCTEST_CONFIG_SUPER_FAST_ASSERTS
#include "tests/cpp/third_party/doctest/doctest.h"

#ifdef TORCHVOX_CUDA
#include <cuda_runtime_api.h>
#endif

namespace torchvox::testing {

// `--quick`: fewer cases, for racecheck, which watches every shared access.
inline bool quick = false;

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// ---- Values and their bytes -------------------------------------------------------------------

using Bytes = std::vector<uint8_t>;

template <class T>
double number(T x) {
  return static_cast<double>(x);
}
inline double number(Half x) { return widen(x); }
inline double number(BFloat16 x) { return widen(x); }

template <class T>
constexpr DType dtype_of() {
  if (std::is_same_v<T, Half>) return DType::kHalf;
  if (std::is_same_v<T, BFloat16>) return DType::kBFloat16;
  return std::is_same_v<T, double> ? DType::kDouble : DType::kFloat;
}
inline int64_t element_bytes(DType dtype) {
  return with_point_type(dtype, [](auto type) { return static_cast<int64_t>(sizeof(type)); });
}

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
template <class T>
std::vector<T> values_of(const Bytes& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
template <class T, class V>
std::vector<T> narrowed(const std::vector<V>& values) {
  std::vector<T> out;
  for (const V value : values) out.push_back(narrow<T>(value));
  return out;
}
inline Bytes store(const std::vector<double>& values, DType dtype) {
  return with_point_type(dtype,
                         [&](auto type) { return bytes_of(narrowed<decltype(type)>(values)); });
}

// ---- Comparison bit for bit: NaN equals the same NaN, and -0 is not +0 ------------------------

using Show = std::string (*)(const uint8_t*);

template <class T>
std::string show(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  char text[32];
  std::snprintf(text, sizeof(text), "%.9g", number(value));
  return text;
}

// Where and how two arrays first differ; empty if they do not.
inline std::string difference(const Bytes& got, const Bytes& want, size_t size, Show show) {
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
template <class T>
std::string difference(const std::vector<T>& got, const std::vector<T>& want) {
  return difference(bytes_of(got), bytes_of(want), sizeof(T), show<T>);
}
#define CHECK_SAME(got, want) CHECK(difference(got, want) == "")

// ---- Where a call runs ------------------------------------------------------------------------

enum class Where { kThread, kThreads, kDevice };

#ifdef TORCHVOX_CUDA
inline void check_cuda(cudaError_t status, const char* what) {
  REQUIRE_MESSAGE(status == cudaSuccess, what << ": " << cudaGetErrorString(status));
}

// The first GPU and a stream of our own; without a GPU a target that is none.
inline const CudaContext& device() {
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
inline bool has_device() { return device().target.cuda; }
#else
inline bool has_device() { return false; }
#endif

// Two threads and many small ranges, the last range first: a result may depend on none of it.
inline void backward_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  const auto run = [&](int64_t first) {
    for (int64_t i = count - 1 - first; i >= 0; i -= 2) body(i, i + 1);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

// Forces a launch decision as long as it lives.
class Plan {
 public:
  Plan(const char* name, int64_t value) : name_(name) { REQUIRE(set_plan_override(name, value)); }
  ~Plan() { set_plan_override(name_, kAutomatic); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

 private:
  const char* name_;
};

// ---- Memory where a call runs -----------------------------------------------------------------

struct Buffer {
  const char* name;
  size_t element;
  Show show;  // null: its content is no output
  Bytes bytes;  // of exactly the size: ASAN and memcheck see one element too many
  void* device = nullptr;
};

// What a call left in memory, inputs too: those stay as they were.
struct Outputs : std::vector<Buffer> {
  template <class T>
  std::vector<T> get(const std::string& name) const {
    for (const Buffer& buffer : *this) {
      if (buffer.name == name) return values_of<T>(buffer.bytes);
    }
    FAIL("no output " << name);
    return {};
  }
};

inline std::string difference(const Outputs& got, const Outputs& want) {
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].show) continue;
    const auto found = difference(got[i].bytes, want[i].bytes, want[i].element, want[i].show);
    if (!found.empty()) return want[i].name + found;
  }
  return "";
}

class Side {
 public:
  explicit Side(Where where) : where_(where) {}
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
#ifdef TORCHVOX_CUDA
  ~Side() {
    for (const Buffer& buffer : buffers_) cudaFree(buffer.device);
  }
#endif

  bool is_device() const { return where_ == Where::kDevice; }

  // A copy of an input; null of an empty one.
  template <class T>
  const T* put(const std::vector<T>& values) {
    return static_cast<T*>(add({"input", sizeof(T), show<T>, bytes_of(values)}));
  }
  IndexArray put(const std::vector<int64_t>& values, bool wide) {
    if (wide) return {put(values), true};
    return {put(std::vector<int32_t>(values.begin(), values.end())), false};
  }
  // Room for an output, filled with bytes that no kernel may take for zeros and that differ between
  // sides, so that an element that is left out shows.
  template <class T>
  T* room(const char* name, int64_t count) {
    return static_cast<T*>(add({name, sizeof(T), show<T>, Bytes(count * sizeof(T), poison())}));
  }
  void* room(const char* name, DType dtype, int64_t count) {
    return with_point_type(
        dtype, [&](auto type) { return static_cast<void*>(room<decltype(type)>(name, count)); });
  }
  void* scratch(int64_t bytes) { return add({"scratch", 1, nullptr, Bytes(bytes, poison())}); }
  // The workspace is exactly as large as requested, and left as it comes on the device, so that
  // initcheck sees a read before a write.
  template <class Args>
  void run(const Args& args) const {
#ifdef TORCHVOX_CUDA
    if (is_device()) {
      void* workspace = nullptr;
      const int64_t bytes = workspace_bytes(args, device().target);
      check_cuda(cudaDeviceSynchronize(), "before the launch");
      if (bytes > 0) check_cuda(cudaMalloc(&workspace, bytes), "memory for a workspace");
      check_cuda(launch(args, workspace, device()), "launch");
      check_cuda(cudaStreamSynchronize(device().stream), "the kernels");
      cudaFree(workspace);
      return;
    }
#endif
    const int64_t bytes = workspace_bytes(args, Target{});
    // 64-byte aligned, as torch's CPU allocator gives it.
    void* workspace = ::operator new(static_cast<size_t>(bytes), std::align_val_t{64});
    std::memset(workspace, poison(), static_cast<size_t>(bytes));
    run_cpu(args, workspace, where_ == Where::kThreads ? ParallelFor(backward_for) : serial_for);
    ::operator delete(workspace, std::align_val_t{64});
  }
  // The last words of a side: its memory goes.
  Outputs take_outputs() {
#ifdef TORCHVOX_CUDA
    for (Buffer& buffer : buffers_) {
      if (!buffer.device) continue;
      check_cuda(cudaMemcpy(buffer.bytes.data(), buffer.device, buffer.bytes.size(),
                            cudaMemcpyDeviceToHost),
                 "copy");
      cudaFree(std::exchange(buffer.device, nullptr));
    }
#endif
    return std::exchange(buffers_, {});
  }

 private:
  uint8_t poison() const { return where_ == Where::kThread ? 0xa5 : 0x5a; }

  void* add(Buffer buffer) {
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
  Where where_;
  Outputs buffers_;
};

// What `body`, which puts memory on a Side and runs calls there, leaves.
template <class Body>
Outputs run_on(Where where, const Body& body) {
  Side side(where);
  body(side);
  return side.take_outputs();
}
// Nothing is done on the device where there is none. Inputs may say nothing of the values, as
// offsets in disorder: then only memory is watched.
template <class Body>
void check_side(Where where, const Body& body, const Outputs& want, bool values_count = true) {
  if (where == Where::kDevice && !has_device()) return;
  CAPTURE(where);
  const Outputs got = run_on(where, body);
  if (values_count) CHECK_SAME(got, want);
}
template <class Body>
void check_sides(const Body& body, const Outputs& want, bool values_count = true) {
  for (const Where where : {Where::kThreads, Where::kDevice}) {
    check_side(where, body, want, values_count);
  }
}
// The outputs of one thread, which the other sides share.
template <class Body>
Outputs on_every_side(const Body& body) {
  const Outputs want = run_on(Where::kThread, body);
  check_sides(body, want);
  return want;
}

// ---- Random values and clouds -----------------------------------------------------------------

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t n) {
    return n > 0 ? static_cast<int64_t>(bits() % static_cast<uint64_t>(n)) : 0;
  }
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
  }
  std::vector<double> uniforms(int64_t count, float low = -1, float high = 1) {
    std::vector<double> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(uniform(low, high));
    return values;
  }

 private:
  uint64_t state_;
};

enum class Cloud {
  kCube,
  kLattice,
  kEqual,
  kLine,
  kHuge,
  kNonFinite,
  kScales,
  kGrid,
  kDuplicates,
  kOrigin,
  kAllNan
};

inline std::vector<double> make_cloud(Cloud kind, int64_t points, int64_t dims, Random& random) {
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

// Clouds in a batch and the memory that they refer to.
struct Clouds {
  CloudBatch batch;
  Bytes points;
  std::vector<int64_t> lengths, offsets;  // empty: not given
  bool wide = true;  // their type

  CloudBatch on(Side& side) const {
    CloudBatch bound = batch;
    bound.data = side.put(points);
    bound.lengths = side.put(lengths, wide);
    bound.offsets = side.put(offsets, wide);
    return bound;
  }
};

// Padded clouds without gaps.
inline Clouds padded(const std::vector<double>& values, int64_t clouds, int64_t rows,
                     int64_t columns = 3, DType dtype = DType::kFloat) {
  Clouds c;
  c.batch.dtype = dtype;
  c.batch.clouds = clouds;
  c.batch.rows = rows;
  c.batch.columns = c.batch.row_stride = columns;
  c.batch.cloud_stride = rows * columns;
  c.points = store(values, dtype);
  return c;
}

}  // namespace torchvox::testing
