// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/portable_sweep.h"

namespace torchvox::testing {
namespace {

// One thread per value.
__global__ void sweep_kernel(int function, uint64_t* out) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kSweepCount) out[i] = swept_bits(function, i);
}

}  // namespace

void sweep_on_device(int function, uint64_t* out) {
  constexpr int kThreads = 256;
  sweep_kernel<<<(kSweepCount + kThreads - 1) / kThreads, kThreads>>>(function, out);
}

}  // namespace torchvox::testing
