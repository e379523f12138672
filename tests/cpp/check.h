// SPDX-License-Identifier: Apache-2.0
//
// What the kernel tests share. A test is a plain program: it calls the kernel layer with host or
// device memory, prints what differs and returns finish() from main. No torch, no test framework,
// so that every sanitizer can run it.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "csrc/kernels/core/arith.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/target.h"
#include "tests/cpp/store.h"

#ifdef TORCHVOX_CUDA
#include <cuda_runtime_api.h>

#include <cstdlib>
#endif

namespace torchvox::testing {

inline int failures = 0;
inline int checks = 0;

inline void check(bool ok, const std::string& what) {
  ++checks;
  if (ok) return;
  ++failures;
  std::printf("FAILED: %s\n", what.c_str());
}

inline double number(double x) { return x; }
inline double number(Half x) { return widen(x); }
inline double number(BFloat16 x) { return widen(x); }

// Bit for bit: NaN equals the same NaN, and -0 is not +0.
template <class T>
void check_same(const std::vector<T>& actual, const std::vector<T>& expected,
                const std::string& what) {
  if (actual.size() != expected.size()) return check(false, what + ": another size");
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::memcmp(&actual[i], &expected[i], sizeof(T)) != 0) {
      return check(false,
                   what + ": element " + std::to_string(i) + " of " +
                       std::to_string(actual.size()) + " is " + std::to_string(number(actual[i])) +
                       ", not " + std::to_string(number(expected[i])));
    }
  }
  check(true, what);
}

// Last line of main.
inline int finish(const char* program) {
  std::printf("%s: %d checks, %d failed\n", program, checks, failures);
  return failures ? 1 : 0;
}

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

 private:
  uint64_t state_;
};

// Two threads and many small ranges, the last range first: a result may depend on none of it.
inline void backward_for(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  const auto run = [&](int64_t first) {
    for (int64_t i = count - 1 - first; i >= 0; i -= 2) body(i, i + 1);
  };
  std::thread other(run, 1);
  run(0);
  other.join();
}

// Bytes that no kernel may take for zeros.
inline constexpr int kPoison = 0xa5;

// Runs the CPU implementation over host memory, its workspace exactly as large as requested and
// poisoned.
template <class Args>
void run_on_host(const Args& args, const ParallelFor& parallel_for = serial_for) {
  const int64_t bytes = workspace_bytes(args, Target{});
  // 64-byte aligned, as torch's CPU allocator gives it.
  void* workspace = ::operator new(static_cast<size_t>(bytes), std::align_val_t{64});
  std::memset(workspace, kPoison, static_cast<size_t>(bytes));
  run_cpu(args, workspace, parallel_for);
  ::operator delete(workspace, std::align_val_t{64});
}

#ifdef TORCHVOX_CUDA

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::printf("FAILED: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

inline bool has_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  cudaGetLastError();
  return false;
}

// Device memory of exactly `size` elements, so that memcheck sees one element too many.
template <class T>
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t size) : size_(size) {
    if (size > 0) check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "cudaMalloc");
  }
  explicit DeviceBuffer(const std::vector<T>& host)
      : DeviceBuffer(static_cast<int64_t>(host.size())) {
    if (size_ > 0) {
      check_cuda(cudaMemcpy(data_, host.data(), bytes(), cudaMemcpyHostToDevice), "copy to device");
    }
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  T* data() const { return data_; }
  void fill(int byte) const {
    if (size_ > 0) check_cuda(cudaMemset(data_, byte, bytes()), "cudaMemset");
  }
  std::vector<T> host() const {
    std::vector<T> copy(static_cast<size_t>(size_));
    if (size_ > 0) {
      check_cuda(cudaMemcpy(copy.data(), data_, bytes(), cudaMemcpyDeviceToHost), "copy to host");
    }
    return copy;
  }

 private:
  size_t bytes() const { return static_cast<size_t>(size_) * sizeof(T); }
  T* data_ = nullptr;
  int64_t size_ = 0;
};

// Runs the CUDA implementation over device memory on a stream of its own and waits for it. The
// workspace is left as cudaMalloc gives it, so that initcheck sees a read before a write.
template <class Args>
void run_on_device(const Args& args) {
  static cudaDeviceProp properties;
  static cudaStream_t stream = nullptr;
  if (!stream) {
    check_cuda(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  CudaContext context;
  context.stream = stream;
  context.target.cuda = true;
  context.target.multiprocessors = properties.multiProcessorCount;
  context.target.shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  context.target.compute_capability = 10 * properties.major + properties.minor;
  check_cuda(cudaDeviceSynchronize(), "before the launch");
  const DeviceBuffer<char> workspace(workspace_bytes(args, context.target));
  check_cuda(launch(args, workspace.data(), context), "launch");
  check_cuda(cudaStreamSynchronize(stream), "the kernels");
}

#endif

}  // namespace torchvox::testing
