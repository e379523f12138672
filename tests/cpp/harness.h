// SPDX-License-Identifier: Apache-2.0
//
// Harness of the kernel tests. A KERNEL_CASE fills the arguments of a kernel with seeded data and
// runs it. main() repeats it in one thread, in two, on the GPU of a CUDA build and with each launch
// plan that the case lists: inputs and outputs must have the same bytes every time, and the
// checksum that the case names. No torch, so that sanitizers and cross builds can run it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/plan_override.h"

namespace torchvox::testing {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline bool every_float = false;  // --every-float: sweeps leave none out

void check(bool condition, const char* text, const char* file, int line);
#define CHECK(condition) ::torchvox::testing::check(condition, #condition, __FILE__, __LINE__)

// ---- Memory, and where a call runs --------------------------------------------------------------

enum class Where { kThread, kThreads, kDevice };

#ifdef TORCHVOX_CUDA
void check_cuda(cudaError_t status);
const CudaContext& device();  // the first GPU; without one, a target that is not CUDA
#endif
bool has_device();

// Two threads and ranges of one element, the last one first: no result may depend on any of it.
void backward_for(int64_t count, const std::function<void(int64_t, int64_t)>& body);

class Side {
 public:
  explicit Side(Where where) : where_(where) {}
  ~Side();
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  bool is_device() const { return where_ == Where::kDevice; }

  // A copy of an input; null of an empty one.
  template <class T>
  T* put(const std::vector<T>& values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return static_cast<T*>(add(std::move(bytes), true));
  }
  // Room for an output. Its bytes differ between sides, so that an element left unwritten shows.
  template <class T>
  T* room(int64_t count) {
    return static_cast<T*>(add(std::vector<uint8_t>(count * sizeof(T), poison()), true));
  }
  // Of several outputs: where each begins and its elements, in turn. Void: the type of void ones.
  template <class Void = float, class T, class... More>
  void room(T** out, int64_t count, More... more) {
    *out = room<std::conditional_t<std::is_void_v<T>, Void, T>>(count);
    if constexpr (sizeof...(more) > 0) room<Void>(more...);
  }
  void* scratch(int64_t bytes) { return add(std::vector<uint8_t>(bytes, poison()), false); }

  // The workspace is exactly as large as requested. On the device it is left as it comes, so that
  // initcheck sees a read before a write, unless `filled`: for a kernel that reads 16 bytes at once
  // and uses those that are written.
  template <class Args>
  void run(const Args& args, [[maybe_unused]] bool filled = false) const {
#ifdef TORCHVOX_CUDA
    if (is_device()) {
      void* workspace = nullptr;
      const int64_t bytes = workspace_bytes(args, device().target);
      if (bytes > 0) check_cuda(cudaMalloc(&workspace, bytes));
      if (filled && bytes > 0) check_cuda(cudaMemset(workspace, poison(), bytes));
      check_cuda(cudaDeviceSynchronize());
      check_cuda(launch(args, workspace, device()));
      check_cuda(cudaStreamSynchronize(device().stream));
      cudaFree(workspace);
      return;
    }
#endif
    const auto bytes = static_cast<size_t>(workspace_bytes(args, Target{}));
    // 64-byte aligned, as from torch's CPU allocator.
    void* workspace = ::operator new(bytes, std::align_val_t{64});
    std::memset(workspace, poison(), bytes);
    run_cpu(args, workspace, where_ == Where::kThreads ? ParallelFor(backward_for) : serial_for);
    ::operator delete(workspace, std::align_val_t{64});
  }

  // What all calls left in all memory except scratch.
  std::vector<uint8_t> bytes();

 private:
  struct Buffer {
    std::vector<uint8_t> bytes;  // of exactly the size: sanitizers see one element too many
    bool compared;
    void* device = nullptr;
  };
  uint8_t poison() const { return where_ == Where::kThread ? 0xa5 : 0x5a; }
  void* add(std::vector<uint8_t> bytes, bool compared);

  Where where_;
  std::vector<Buffer> buffers_;
};

// ---- Cases --------------------------------------------------------------------------------------

inline constexpr uint64_t kUnspecified = 0;  // a checksum: values are not compared

struct ForcedPlans {
  const char* name;
  std::vector<int64_t> values;
};
struct Case {
  const char* name;
  void (*run)(Side&);
  uint64_t checksum;
  std::vector<ForcedPlans> plans;
};
bool add_case(const Case& c);

// KERNEL_CASE(name, checksum, {"plan", {values}}, ..) { .. side.run(args); }
#define KERNEL_CASE(name, checksum, ...)                                             \
  void name##_case(Side&);                                                           \
  const bool name##_added = add_case({#name, name##_case, checksum, {__VA_ARGS__}}); \
  void name##_case([[maybe_unused]] Side& side)
#define TEST_CASE(name) KERNEL_CASE(name, kUnspecified)

// ---- Seeded data --------------------------------------------------------------------------------

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
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(n)); }
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
  }
  template <class T = float>
  std::vector<T> uniforms(int64_t count, float low = -1, float high = 1) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(narrow<T>(uniform(low, high)));
    return values;
  }
  template <class T = int32_t>
  std::vector<T> integers(int64_t count, int64_t low, int64_t high) {  // in [low, high)
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(static_cast<T>(low + below(high - low)));
    return values;
  }

 private:
  uint64_t state_;
};

// [points, columns]: the first half on a lattice of half meters, some values not finite.
std::vector<float> make_points(int64_t points, int64_t columns, float reach, uint64_t seed);
// [count, columns]: half of them on a lattice, some without a size or not finite.
std::vector<float> make_boxes(int64_t count, int64_t columns, float reach, uint64_t seed);
// [height, width, per_cell, 7], half a meter apart.
std::vector<float> make_anchors(int64_t height, int64_t width, int64_t per_cell);

// Clouds of equal size, or those between offsets.
CloudBatch padded(Side& side, const std::vector<float>& values, int64_t clouds, int64_t columns);
CloudBatch packed(Side& side, const std::vector<float>& values, int64_t columns,
                  const std::vector<int64_t>& offsets = {});

}  // namespace torchvox::testing

using namespace torchvox;
using namespace torchvox::testing;
