// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/portable_math_sweep.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

#include "tests/cpp/check.h"

namespace torchvox::testing {
namespace {

constexpr uint32_t kStep = 997;  // every 997th float
constexpr int kCount = static_cast<int>((uint64_t{1} << 32) / kStep);

__global__ void sweep_kernel(SweepFunction function, float* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kCount) out[i] = sweep_value(function, bit_cast<float>(i * kStep));
}

__global__ void sweep_double_kernel(double2* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= kCount) return;
  const auto both = portable::sin_cos(static_cast<double>(i - kCount / 2) * 0.37);
  out[i] = {both.sin, both.cos};
}

}  // namespace

void check_sweep_on_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no GPU: host only\n");
    return;
  }
  void* memory = nullptr;
  check(cudaMalloc(&memory, kCount * sizeof(double2)) == cudaSuccess, "memory for the sweep");
  const int blocks = (kCount + 255) / 256;
  for (const SweepFunction function : kSweepFunctions) {
    sweep_kernel<<<blocks, 256>>>(function, static_cast<float*>(memory));
    std::vector<float> got(kCount), want(kCount);
    cudaMemcpy(got.data(), memory, kCount * sizeof(float), cudaMemcpyDeviceToHost);
    for (int i = 0; i < kCount; ++i) want[i] = sweep_value(function, bit_cast<float>(i * kStep));
    check_same(got, want, std::string(sweep_name(function)) + " on the device");
  }
  sweep_double_kernel<<<blocks, 256>>>(static_cast<double2*>(memory));
  std::vector<double> got(2 * kCount), want(2 * kCount);
  cudaMemcpy(got.data(), memory, kCount * sizeof(double2), cudaMemcpyDeviceToHost);
  for (int i = 0; i < kCount; ++i) {
    const auto both = portable::sin_cos(static_cast<double>(i - kCount / 2) * 0.37);
    want[2 * i] = both.sin;
    want[2 * i + 1] = both.cos;
  }
  check_same(got, want, "double sine and cosine on the device");
  check(cudaGetLastError() == cudaSuccess, "the sweep");
  cudaFree(memory);
}

}  // namespace torchvox::testing
