// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {

// The gradient of a gather or an interpolation with respect to its features: row n of cloud b sums
// the gradients of the slots that read it, in the order of kSumChunk, in fp32 (fp64 for fp64).
// With weights, the slots are those of an interpolation: three share a row of grad, and each adds
// its weight times that row, rounded once.
inline constexpr int kWeightedFan = 3;
struct SlotSumArgs {
  const void* grad =
      nullptr;  // [clouds, slots / fan, channels], or [clouds, channels, slots / fan]
  DType dtype = DType::kFloat;
  const void* weight = nullptr;  // [clouds, slots] in the type of the sums, or null
  SlotLists lists;
  void* out = nullptr;  // [clouds, rows, channels], or [clouds, channels, rows]
  int64_t channels = 0;
  bool channels_first = false;
};

TORCHVOX_EXPORT int64_t workspace_bytes(const SlotSumArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const SlotSumArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
int64_t workspace_bytes_cuda(const SlotSumArgs& args);
TORCHVOX_EXPORT cudaError_t launch(const SlotSumArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
