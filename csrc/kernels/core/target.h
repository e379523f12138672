// SPDX-License-Identifier: Apache-2.0
//
// The device and stream of a call, and the export of symbols.
#pragma once

#include <cstdint>

#ifdef TORCHVOX_CUDA
#include <cuda_runtime_api.h>
#endif

// Symbols are hidden by default; the launchers that other libraries call are exported by name.
#define TORCHVOX_EXPORT __attribute__((visibility("default")))

namespace torchvox {

// What the host knows of the device before a call starts. Launch plans and workspace sizes depend
// on this and on shapes, never on data.
struct Target {
  bool cuda = false;
  int threads = 1;  // CPU: threads the caller's pool may use; never decides a result
  int multiprocessors = 0;  // CUDA
  int shared_bytes = 0;  // CUDA: dynamic shared memory that one block may opt in to
  int compute_capability = 0;  // CUDA: 10 * major + minor
  bool cooperative_launch = false;  // CUDA
};

// Blocks along the x axis of a grid. A count above CUDA's limit stays above it, so that the launch
// fails instead of doing part of the work.
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
