// SPDX-License-Identifier: Apache-2.0
//
// Device memory, launches and clocks for kernel tests. Without CUDA there is never a device.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// Copies of host vectors and scratch, freed together.
class DeviceBuffers {
 public:
  DeviceBuffers() = default;
  DeviceBuffers(const DeviceBuffers&) = delete;
  DeviceBuffers& operator=(const DeviceBuffers&) = delete;
#ifdef TORCHVOX_CUDA
  ~DeviceBuffers() {
    for (void* buffer : buffers_) cudaFree(buffer);
  }
  void* allocate(int64_t bytes) {
    void* buffer = nullptr;
    if (cudaMalloc(&buffer, bytes > 0 ? bytes : 1) != cudaSuccess) std::printf("out of memory\n");
    buffers_.push_back(buffer);
    return buffer;
  }
  template <class T>
  void* copy(const std::vector<T>& values) {
    void* buffer = allocate(static_cast<int64_t>(values.size() * sizeof(T)));
    cudaMemcpy(buffer, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice);
    return buffer;
  }
  template <class T>
  void read(const void* from, std::vector<T>& values) {
    cudaDeviceSynchronize();
    cudaMemcpy(values.data(), from, values.size() * sizeof(T), cudaMemcpyDeviceToHost);
  }
#else
  void* allocate(int64_t) { return nullptr; }
  template <class T>
  void* copy(const std::vector<T>&) {
    return nullptr;
  }
  template <class T>
  void read(const void*, std::vector<T>&) {}
#endif

 private:
  std::vector<void*> buffers_;
};

inline bool find_device(Target& target) {
#ifdef TORCHVOX_CUDA
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return false;
  const auto attribute = [](cudaDeviceAttr name) {
    int value = 0;
    cudaDeviceGetAttribute(&value, name, 0);
    return value;
  };
  target.cuda = true;
  target.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
  target.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  target.compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
      attribute(cudaDevAttrComputeCapabilityMinor);
  target.cooperative_launch = attribute(cudaDevAttrCooperativeLaunch) != 0;
  return true;
#else
  (void)target;
  return false;
#endif
}

// Runs an op's arguments on the device, or on the host when `device` is null.
template <class Args>
void run_where(const Args& args, DeviceBuffers* device, const Target* target, int& failures) {
  if (!device) {
    std::vector<char> workspace(workspace_bytes(args, Target{}));
    run_cpu(args, workspace.data(), serial_for);
    return;
  }
#ifdef TORCHVOX_CUDA
  CudaContext context;
  context.target = *target;
  const cudaError_t status =
      launch(args, device->allocate(workspace_bytes(args, *target)), context);
  if (status != cudaSuccess) {
    std::printf("FAIL launch: %s\n", cudaGetErrorString(status));
    ++failures;
  }
#else
  (void)target, (void)failures;
#endif
}

// Best of a few runs.
template <class Body>
double host_microseconds(Body body) {
  double best = 1e30;
  for (int run = 0; run < 3; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best = time.count() < best ? time.count() : best;
  }
  return best;
}

// Time of one launch inside a captured graph that is replayed `replays` times.
template <class Args>
double replay_microseconds(const Args& args, DeviceBuffers& device, const Target& target,
                           int replays) {
#ifdef TORCHVOX_CUDA
  CudaContext context;
  context.target = target;
  cudaStreamCreate(&context.stream);
  void* const workspace = device.allocate(workspace_bytes(args, target));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  cudaStreamBeginCapture(context.stream, cudaStreamCaptureModeGlobal);
  const cudaError_t launched = launch(args, workspace, context);
  cudaError_t status = cudaStreamEndCapture(context.stream, &graph);
  if (launched != cudaSuccess) status = launched;
  if (status == cudaSuccess) status = cudaGraphInstantiate(&executable, graph, 0);
  if (status != cudaSuccess) {
    std::printf("capture failed: %s\n", cudaGetErrorString(status));
    return 0;
  }
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  cudaGraphLaunch(executable, context.stream);
  cudaEventRecord(begin, context.stream);
  for (int replay = 0; replay < replays; ++replay) cudaGraphLaunch(executable, context.stream);
  cudaEventRecord(end, context.stream);
  cudaEventSynchronize(end);
  float milliseconds = 0;
  cudaEventElapsedTime(&milliseconds, begin, end);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(context.stream);
  return 1000.0 * milliseconds / replays;
#else
  (void)args, (void)device, (void)target, (void)replays;
  return 0;
#endif
}

}  // namespace torchvox
