// SPDX-License-Identifier: Apache-2.0
//
// What the kernel tests share: doctest; a call run in one thread, in two and on the GPU, whose
// outputs must agree bit for bit; random clouds. No torch, so that every sanitizer can run them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <limits>
#include <new>
#include <string>
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
Bytes store(const std::vector<double>& values, DType dtype);

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
std::string difference(const Bytes& got, const Bytes& want, size_t size, Show show);
template <class T>
std::string difference(const std::vector<T>& got, const std::vector<T>& want) {
  return difference(bytes_of(got), bytes_of(want), sizeof(T), show<T>);
}
#define CHECK_SAME(got, want) CHECK(difference(got, want) == "")

// ---- Where a call runs ------------------------------------------------------------------------

enum class Where { kThread, kThreads, kDevice };

#ifdef TORCHVOX_CUDA
void check_cuda(cudaError_t status, const char* what);
// The first GPU and a stream of our own; without a GPU a target that is none.
const CudaContext& device();
inline bool has_device() { return device().target.cuda; }
#else
inline bool has_device() { return false; }
#endif

// Two threads and many small ranges, the last range first: a result may depend on none of it.
void backward_for(int64_t count, const std::function<void(int64_t, int64_t)>& body);

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

std::string difference(const Outputs& got, const Outputs& want);

class Side {
 public:
  explicit Side(Where where) : where_(where) {}
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;
  ~Side();

  bool is_device() const { return where_ == Where::kDevice; }

  // A copy of an input; null of an empty one.
  template <class T>
  const T* put(const std::vector<T>& values) {
    return static_cast<T*>(add({"input", sizeof(T), show<T>, bytes_of(values)}));
  }
  IndexArray put(const std::vector<int64_t>& values, bool wide);
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
  // initcheck sees a read before a write; `filled` is for kernels that read 16 bytes at once and
  // use of them what is written.
  template <class Args>
  void run(const Args& args, [[maybe_unused]] bool filled = false) const {
#ifdef TORCHVOX_CUDA
    if (is_device()) {
      void* workspace = nullptr;
      const int64_t bytes = workspace_bytes(args, device().target);
      check_cuda(cudaDeviceSynchronize(), "before the launch");
      if (bytes > 0) check_cuda(cudaMalloc(&workspace, bytes), "memory for a workspace");
      if (filled && bytes > 0) {
        check_cuda(cudaMemsetAsync(workspace, poison(), bytes, device().stream), "filling it");
      }
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
  Outputs take_outputs();

 private:
  uint8_t poison() const { return where_ == Where::kThread ? 0xa5 : 0x5a; }

  void* add(Buffer buffer);

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

std::vector<double> make_cloud(Cloud kind, int64_t points, int64_t dims, Random& random);

// Clouds in a batch and the memory that they refer to.
struct Clouds {
  CloudBatch batch;
  Bytes points;
  std::vector<int64_t> lengths, offsets;  // empty: not given
  bool wide = true;  // their type

  CloudBatch on(Side& side) const;
};

// Padded clouds without gaps.
Clouds padded(const std::vector<double>& values, int64_t clouds, int64_t rows, int64_t columns = 3,
              DType dtype = DType::kFloat);

}  // namespace torchvox::testing
