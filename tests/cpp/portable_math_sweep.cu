// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/portable_math_sweep.h"

#include <cuda_runtime_api.h>

namespace torchvox::testing {
namespace {

constexpr int kThreads = 256, kBlocks = (kSweepCount + kThreads - 1) / kThreads;

__global__ void sweep_kernel(SweepFunction function, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kSweepCount) out[i] = sweep_value(function, bit_cast<float>(i * kSweepStep));
}

__global__ void sweep_double_kernel(double2* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= kSweepCount) return;
  const auto both = sweep_double(i - kSweepCount / 2);
  out[i] = {both.sin, both.cos};
}

// `count` values that `fill` writes; none where anything fails.
template <class T, class Fill>
std::vector<T> filled(int64_t count, const Fill& fill) {
  std::vector<T> values(count);
  void* memory = nullptr;
  cudaMalloc(&memory, count * sizeof(T));
  fill(memory);
  cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost);
  cudaFree(memory);
  if (cudaGetLastError() != cudaSuccess) values.clear();
  return values;
}

}  // namespace

std::vector<float> sweep_on_device(SweepFunction function) {
  return filled<float>(kSweepCount, [&](void* out) {
    sweep_kernel<<<kBlocks, kThreads>>>(function, static_cast<float*>(out));
  });
}

std::vector<double> sweep_double_on_device() {
  return filled<double>(2 * kSweepCount, [](void* out) {
    sweep_double_kernel<<<kBlocks, kThreads>>>(static_cast<double2*>(out));
  });
}

}  // namespace torchvox::testing
