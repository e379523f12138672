// SPDX-License-Identifier: Apache-2.0
//
// What launchers and kernels share: error checks, grid sizes, grid-stride indices and chains of
// dependent launches.
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/core/target.h"

// Returns from a launcher with the first error.
#define TORCHVOX_CUDA_CHECK(call)               \
  do {                                          \
    const cudaError_t torchvox_status = (call); \
    if (torchvox_status != cudaSuccess) {       \
      return torchvox_status;                   \
    }                                           \
  } while (0)

namespace torchvox {

template <class T>
__host__ __device__ constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}

// Blocks for `count` items, one per thread, but at most `per_multiprocessor` blocks for each
// multiprocessor: kernels reach the remaining items in a grid-stride loop. At least one block.
inline unsigned blocks_for(int64_t count, int threads, const Target& target,
                           int per_multiprocessor = 16) {
  const int64_t blocks = ceil_div<int64_t>(count, threads);
  const int64_t most =
      int64_t{per_multiprocessor} * (target.multiprocessors > 0 ? target.multiprocessors : 1);
  return static_cast<unsigned>(blocks < most ? (blocks > 0 ? blocks : 1) : most);
}

__device__ __forceinline__ int64_t global_thread() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t global_stride() { return int64_t{gridDim.x} * blockDim.x; }

// Threads for a matrix of rows: elements of a row side by side along x, rows along y, so that no
// thread has to divide to find its element. Clouds lie along the grid's y.
inline constexpr int kRowThreads = 256;

inline unsigned grid_y(int64_t count) {
  constexpr int64_t kMost = 65535;
  return static_cast<unsigned>(count < kMost ? count : kMost);
}

// A block of kRowThreads threads: elements of a row side by side, then as many rows as fit.
inline dim3 block_of(int64_t elements) {
  const auto x = static_cast<unsigned>(elements < kRowThreads ? elements : kRowThreads);
  return dim3(x, kRowThreads / x);
}

// A chain of kernels in which each may be set up, and read the inputs of the op, while the one
// before it drains (programmatic dependent launch, sm_90 and later). Elsewhere the same calls are
// plain launches.
//
// A kernel launched by launch_after may read what was there before the chain began at once; before
// it touches anything that the chain writes, each of its threads calls wait_for_previous().

// Lets the next kernel of the chain be set up. It still has to wait for the writes of this one.
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

// Whether this build has code for exactly the device's architecture, in which wait_for_previous()
// really waits. Code for an older one, which the driver translates on loading, does not: its
// launches must not overlap.
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

// A plain launch, which waits for the kernels before.
template <class... Parameters, class... Arguments>
cudaError_t launch_sharing(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                           size_t shared_bytes, cudaStream_t stream,
                           const Arguments&... arguments) {
  kernel<<<blocks, threads, shared_bytes, stream>>>(Parameters(arguments)...);
  return cudaGetLastError();
}
template <class... Parameters, class... Arguments>
cudaError_t launch_blocks(void (*kernel)(Parameters...), dim3 blocks, dim3 threads,
                          cudaStream_t stream, const Arguments&... arguments) {
  return launch_sharing(kernel, blocks, threads, 0, stream, arguments...);
}

// Launches a kernel that walks `count` items in a grid-stride loop. launch_items launches nothing
// when there are no items; launch_items_after is the next launch of a chain in any case.
template <class... Parameters, class... Arguments>
cudaError_t launch_items(void (*kernel)(Parameters...), int64_t count, int threads,
                         const CudaContext& context, const Arguments&... arguments) {
  if (count == 0) return cudaSuccess;
  return launch_blocks(kernel, blocks_for(count, threads, context.target), threads, context.stream,
                       arguments...);
}
template <class... Parameters, class... Arguments>
cudaError_t launch_items_after(void (*kernel)(Parameters...), int64_t count, int threads,
                               const CudaContext& context, const Arguments&... arguments) {
  return launch_after(kernel, blocks_for(count, threads, context.target), threads, context,
                      arguments...);
}

// One thread per element: kElement(args, i) for every i below `count`. What it reads and writes is
// said where kElement is defined.
template <auto kElement, int kThreads, class Args>
__global__ void __launch_bounds__(kThreads)
    elements_kernel(const __grid_constant__ Args args, int64_t count) {
  for (int64_t i = global_thread(); i < count; i += global_stride()) kElement(args, i);
}
template <auto kElement, int kThreads = 256, class Args>
cudaError_t launch_elements(const Args& args, int64_t count, const CudaContext& context) {
  return launch_items(elements_kernel<kElement, kThreads, Args>, count, kThreads, context, args,
                      count);
}

}  // namespace torchvox
