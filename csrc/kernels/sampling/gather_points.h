// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// out[b, m] = features[b, idx[b, m]], a zero row where the index is outside [0, points).
// Channel-last: features [batches, points, channels]. Channels first: [batches, channels, points].
struct GatherPointsArgs {
  const void* features = nullptr;  // contiguous
  IndexArray idx;  // [batches, samples]
  void* out = nullptr;  // [batches, samples, channels] or [batches, channels, samples]
  int64_t element_bytes = 4;
  int64_t batches = 0;
  int64_t points = 0;
  int64_t samples = 0;
  int64_t channels = 0;
  bool channels_first = false;
};

// The row of the flattened batch that each sample reads, b * points + idx, or -1.
struct GatherRowsArgs {
  IndexArray idx;  // [batches, samples]
  int32_t* row = nullptr;  // [batches, samples]
  int64_t batches = 0;
  int64_t points = 0;
  int64_t samples = 0;
};

// grad_features[b, n] = sum of grad over the samples that read point n, in ascending order of the
// samples, in chunks of kGatherChunk whose sums are added in order: fp32, or fp64 for fp64.
inline constexpr int kGatherChunk = 256;
struct GatherPointsBackwardArgs {
  const void* grad = nullptr;  // [batches, samples, channels] or [batches, channels, samples]
  DType dtype = DType::kFloat;
  const int32_t* offsets = nullptr;  // [batches * points + 1], ranges of `order`
  const int32_t* order = nullptr;  // flat samples by the row they read, ascending in a row
  void* grad_features = nullptr;  // as the features
  int64_t batches = 0;
  int64_t points = 0;
  int64_t samples = 0;
  int64_t channels = 0;
  bool channels_first = false;
};

TORCHVOX_EXPORT int64_t workspace_bytes(const GatherPointsArgs& args, const Target& target);
TORCHVOX_EXPORT int64_t workspace_bytes(const GatherRowsArgs& args, const Target& target);
TORCHVOX_EXPORT int64_t workspace_bytes(const GatherPointsBackwardArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const GatherPointsArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
TORCHVOX_EXPORT void run_cpu(const GatherRowsArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
TORCHVOX_EXPORT void run_cpu(const GatherPointsBackwardArgs& args, void* workspace,
                             const ParallelFor& parallel_for);

#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const GatherPointsArgs& args, void* workspace,
                                   const CudaContext& context);
TORCHVOX_EXPORT cudaError_t launch(const GatherRowsArgs& args, void* workspace,
                                   const CudaContext& context);
TORCHVOX_EXPORT cudaError_t launch(const GatherPointsBackwardArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
