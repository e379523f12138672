// SPDX-License-Identifier: Apache-2.0
//
// What runs the call of a node: the threads of a session, or the stream of its CUDA provider.
#pragma once

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <thread>

#include "csrc/bind/bind.h"
#include "csrc/onnx/ort_abi.h"

namespace torchvox {

// An error of the host, on its way back to it.
struct HostError : std::exception {
  ort::Status* status;
  explicit HostError(ort::Status* given) : status(given) {}
};

inline void require(ort::Status* status) {
  if (status != nullptr) throw HostError(status);
}

// The threads of the session.
class CpuHost : public bind::Host {
 public:
  CpuHost(const ort::Api& api, ort::KernelContext* context) {
    static const unsigned threads = std::thread::hardware_concurrency();  // a system call
    target_.threads = static_cast<int>(std::max(1u, threads));
    parallel_for_ = [&api, context](int64_t count, const Body& body) {
      Loop loop{body, {}, {}};
      require(api.KernelContext_ParallelFor(context, ort::Task(run_task),
                                            static_cast<size_t>(count), size_t{0}, &loop));
      if (loop.error) std::rethrow_exception(loop.error);
    };
  }
  Target target() const override { return target_; }
  bind::Memory allocate(int64_t bytes) const override {
    constexpr std::align_val_t kAlignment{64};
    return {::operator new(static_cast<size_t>(bytes), kAlignment),
            [](void* memory) { ::operator delete(memory, kAlignment); }};
  }
  const ParallelFor& parallel_for() const override { return parallel_for_; }

 private:
  using Body = std::function<void(int64_t, int64_t)>;
  struct Loop {
    const Body& body;
    std::atomic_flag failed;
    std::exception_ptr error;  // the first one: nothing may be thrown through the host's threads
  };
  static void run_task(void* user, size_t index) {
    auto& loop = *static_cast<Loop*>(user);
    const auto i = static_cast<int64_t>(index);
    try {
      loop.body(i, i + 1);
    } catch (...) {
      if (!loop.failed.test_and_set()) loop.error = std::current_exception();
    }
  }
  Target target_;
  ParallelFor parallel_for_;
};

#ifdef TORCHVOX_CUDA
// The GPU of a node: what calls that overlap share.
class Gpu {
 public:
  Gpu(const ort::Api& api, const ort::KernelInfo* info) : api_(api) {
    ort::Allocator* allocator = nullptr;
    require(api.KernelInfoGetAllocator(info, kDeviceMemory, &allocator));
    allocator_ = {allocator, [api](ort::Allocator* one) { api.ReleaseAllocator(one); }};
    require(api.AllocatorGetInfo(allocator, &place_));
    int device = 0;
    require(api.MemoryInfoGetId(place_, &device));
    const auto attribute = [device](cudaDeviceAttr name) {
      int value = 0;
      const cudaError_t status = cudaDeviceGetAttribute(&value, name, device);
      if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
      return value;
    };
    target_.cuda = true;
    target_.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    target_.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
    target_.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
        attribute(cudaDevAttrComputeCapabilityMinor);
    target_.cooperative_launch = attribute(cudaDevAttrCooperativeLaunch) != 0;
  }
  const ort::Api& api() const { return api_; }
  const Target& target() const { return target_; }

  // Scratch memory is the one kind that the host hands out in the order of the stream, and it does
  // not take it back by itself. It ends the process where there is none: more than the node ever
  // had is asked for in another way first, which the host can refuse.
  bind::Memory allocate(const ort::KernelContext* context, size_t bytes) {
    void* memory = nullptr;
    if (bytes > most_.load()) {
      require(api_.AllocatorAlloc(allocator_.get(), bytes, &memory));
      free(memory);
      for (size_t most = most_.load(); most < bytes && !most_.compare_exchange_weak(most, bytes);) {
      }
    }
    require(api_.KernelContext_GetScratchBuffer(context, place_, bytes, &memory));
    return {memory, [this](void* one) { free(one); }};
  }

 private:
  static constexpr int kDeviceMemory = 0;  // the default kind of the provider
  void free(void* memory) {
    if (ort::Status* const status = api_.AllocatorFree(allocator_.get(), memory)) {
      api_.ReleaseStatus(status);
    }
  }

  ort::Api api_;
  std::unique_ptr<ort::Allocator, std::function<void(ort::Allocator*)>> allocator_;
  const ort::MemoryInfo* place_ = nullptr;
  Target target_;
  std::atomic<size_t> most_{0};  // bytes of an allocation
};

// The stream of one call. Nothing waits for it.
class CudaHost : public bind::Host {
 public:
  CudaHost(Gpu& gpu, const ort::KernelContext* context) : gpu_(gpu), context_(context) {
    require(gpu.api().KernelContext_GetGPUComputeStream(context, &stream_));
  }
  Target target() const override { return gpu_.target(); }
  bind::Memory allocate(int64_t bytes) const override {
    if (bytes == 0) return {};
    return gpu_.allocate(context_, static_cast<size_t>(bytes));
  }
  const ParallelFor& parallel_for() const override {
    throw std::logic_error("there are no threads on a GPU");
  }
  void* stream() const override { return stream_; }

 private:
  Gpu& gpu_;
  const ort::KernelContext* context_;
  void* stream_ = nullptr;
};
#else
class Gpu {
 public:
  Gpu(const ort::Api&, const ort::KernelInfo*) {
    throw std::invalid_argument("this libtorchvox_onnx.so was built without CUDA");
  }
};
#endif

}  // namespace torchvox
