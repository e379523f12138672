// SPDX-License-Identifier: Apache-2.0
//
// furthest_point_sample_with_dist on the GPU. Running distances are in shared memory, or in scratch
// memory if they do not fit. One barrier per sample: the slots of the argmax are double-buffered.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/sampling/furthest_point_sample_with_dist.h"

namespace torchvox {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
static_assert(kWarps == 32);  // one lane per warp

__device__ __forceinline__ uint64_t warp_max_key(uint64_t key) {
  const uint32_t high = warp_max(static_cast<uint32_t>(key >> 32));
  const bool is_highest = high == static_cast<uint32_t>(key >> 32);
  return uint64_t{high} << 32 | warp_max(is_highest ? static_cast<uint32_t>(key) : 0);
}

// One block per cloud: for every sample it reads one row of distances, lowers the running
// distances, and thread 0 writes the index.
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const __grid_constant__ FpsWithDistArgs args, float* scratch) {
  extern __shared__ float shared[];
  __shared__ uint64_t slots[2][kWarps];
  const int64_t b = blockIdx.x;
  const CloudRows cloud = args.distances.cloud(b);
  const TieRule tie = TieRule::make(args.distances.rows, args.tie_block);
  int32_t* const idx = args.idx + b * args.samples;
  if (cloud.points == 0) {
    for (int64_t s = threadIdx.x; s < args.samples; s += kThreads) idx[s] = -1;
    return;
  }
  float* const __restrict__ dist =
      scratch ? scratch + cloud.first : shared;  // each thread uses only its own entries
  for (uint32_t i = threadIdx.x; i < cloud.points; i += kThreads) dist[i] = args.init_dist;
  int64_t last = args.first_sample(cloud.points);
  for (int64_t s = 0;; ++s) {
    if (threadIdx.x == 0) idx[s] = static_cast<int32_t>(last);
    if (s == args.samples - 1) return;
    const float* const __restrict__ row = args.row(b, last);
    uint64_t best = 0;
#pragma unroll 4
    for (uint32_t i = threadIdx.x; i < cloud.points; i += kThreads) {
      const float d = lower_dist(dist[i], row[i]);
      dist[i] = d;
      best = max(best, fps_key(d, tie.code(i)));
    }
    best = warp_max_key(best);
    if (threadIdx.x % 32 == 0) slots[s & 1][threadIdx.x / 32] = best;
    __syncthreads();
    last = tie.index(code_of_key(warp_max_key(slots[s & 1][threadIdx.x % 32])));
  }
}

// Shared memory for the distances of a cloud; 0 if they do not fit.
size_t shared_bytes(const FpsWithDistArgs& args, const Target& target) {
  const int64_t bytes = args.distances.rows * static_cast<int64_t>(sizeof(float));
  return bytes <= target.shared_bytes - 1024 ? static_cast<size_t>(bytes) : 0;
}

}  // namespace

int64_t workspace_bytes_cuda(const FpsWithDistArgs& args, const Target& target) {
  return shared_bytes(args, target) > 0 ? 0 : workspace_bytes_cpu(args);
}

cudaError_t launch(const FpsWithDistArgs& args, void* memory, const CudaContext& context) {
  if (args.distances.clouds == 0 || args.samples == 0) return cudaSuccess;
  const size_t shared = shared_bytes(args, context.target);
  TORCHVOX_CUDA_CHECK(cudaFuncSetAttribute(
      sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)));
  return launch_sharing(sample_kernel, grid_x(args.distances.clouds), kThreads, shared,
                        context.stream, args, static_cast<float*>(shared > 0 ? nullptr : memory));
}

}  // namespace torchvox
