// SPDX-License-Identifier: Apache-2.0
//
// Where a call runs, in facts known before it starts; the stream; which symbols are exported.
#pragma once

#include <cstdint>

#ifdef TORCHVOX_CUDA
#include <cuda_runtime_api.h>
#endif

// Symbols are hidden by default; the launchers that other libraries call are exported by name.
#define TORCHVOX_EXPORT __attribute__((visibility("default")))

namespace torchvox {

// Where a call runs, in facts that the host knows before it starts. Launch plans and workspace
// sizes depend on these and on shapes, never on data.
struct Target {
  bool cuda = false;
  int threads = 1;  // CPU: threads the caller's pool may use; never decides a result
  int multiprocessors = 0;  // CUDA
  int shared_bytes = 0;  // CUDA: dynamic shared memory that one block may opt in to
  int compute_capability = 0;  // CUDA: 10 * major + minor
  bool cooperative_launch = false;  // CUDA
};

// Blocks side by side. More than a grid can have stay too many, so that the launch is refused.
inline unsigned grid_x(int64_t blocks) {
  constexpr int64_t kMost = 0x7fffffff;
  return static_cast<unsigned>(blocks <= kMost ? blocks : kMost + 1);
}

#ifdef TORCHVOX_CUDA
struct CudaContext {
  cudaStream_t stream = nullptr;
  Target target;
};
#endif

}  // namespace torchvox
