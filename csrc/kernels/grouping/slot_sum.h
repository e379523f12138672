// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// The gradient of a gather or an interpolation with respect to its features: row n of cloud b sums
// the gradients of the slots that read it, in the order of chunked_sum.h, in fp32 (fp64 for fp64).
// `fan` slots share a row of grad: 1 in a gather, 3 in an interpolation, where each slot's share is
// its weight times that row, rounded once.
struct SlotSumArgs {
  const void* grad =
      nullptr;  // [clouds, slots / fan, channels], or [clouds, channels, slots / fan]
  DType dtype = DType::kFloat;
  const void* weight = nullptr;  // [clouds, slots], or null: 1
  DType weight_dtype = DType::kFloat;
  int64_t fan = 1;
  const int32_t* offsets = nullptr;  // slot lists
  const int32_t* order = nullptr;
  void* out = nullptr;  // [clouds, rows, channels], or [clouds, channels, rows]
  int64_t clouds = 0;
  int64_t rows = 0;
  int64_t slots = 0;
  int64_t channels = 0;
  bool channels_first = false;
};

TORCHVOX_EXPORT int64_t workspace_bytes(const SlotSumArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const SlotSumArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const SlotSumArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
