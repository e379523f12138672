// SPDX-License-Identifier: Apache-2.0
//
// A chain of kernels in which each may be set up, and read the inputs of the op, while the one
// before it drains (programmatic dependent launch, sm_90 and later). Elsewhere the same calls are
// plain launches.
//
// A kernel launched by launch_after may read what was there before the chain began at once; before
// it touches anything that the chain writes, each of its threads calls wait_for_previous().
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/core/target.h"

namespace torchvox {

// Lets the next kernel of the chain begin to be set up. No more than that.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Returns when the kernel before is over and its writes are visible.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Whether the device runs code in which wait_for_previous() waits: this very architecture was
// compiled for. Code for an older one, translated on loading, must not overlap.
inline bool can_overlap(const Target& target) {
  if (target.compute_capability < 90) return false;
#ifdef __CUDA_ARCH_LIST__
  for (const int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture == 10 * target.compute_capability) return true;
  }
#endif
  return false;
}

template <class... Parameters, class... Arguments>
cudaError_t launch_after_sharing(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                                 size_t shared_bytes, const CudaContext& context,
                                 const Arguments&... arguments) {
  cudaLaunchAttribute overlap[1] = {};
  overlap[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap[0].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = context.stream;
  config.attrs = overlap;
  config.numAttrs = can_overlap(context.target) ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...);
}
template <class... Parameters, class... Arguments>
cudaError_t launch_after(void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
                         const CudaContext& context, const Arguments&... arguments) {
  return launch_after_sharing(kernel, blocks, dim3(threads), 0, context, arguments...);
}

}  // namespace torchvox
