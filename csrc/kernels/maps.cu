// SPDX-License-Identifier: Apache-2.0
//
// The kernels of maps.h on the GPU: one thread per element.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/maps.h"

namespace torchvox {
namespace {

struct Cuda {
  const CudaContext& context;

  template <auto kElement, int kThreads, class Args>
  cudaError_t map(const Args& args, int64_t count, int64_t) const {
    return launch_elements<kElement, kThreads>(args, count, context);
  }
};

}  // namespace

#define TORCHVOX_LAUNCH_MAP(Args)                                           \
  cudaError_t launch(const Args& args, void*, const CudaContext& context) { \
    return map_elements(args, Cuda{context});                               \
  }
TORCHVOX_MAPS(TORCHVOX_LAUNCH_MAP)

}  // namespace torchvox
