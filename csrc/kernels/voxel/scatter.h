// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

enum class ScatterReduce { kMean, kSum, kMax, kMin };

// Reduces the rows that voxel_csr lists. Offsets and perm may come from the caller: whatever they
// hold, no access leaves the buffers.
struct VoxelScatterArgs {
  const void* feats = nullptr;  // [points, channels] contiguous
  DType dtype = DType::kFloat;
  ScatterReduce reduce = ScatterReduce::kMean;
  int64_t points = 0;
  int64_t channels = 0;
  int64_t rows = 0;
  const int32_t* offsets = nullptr;  // [rows + 1]
  const int32_t* perm = nullptr;  // [points]
  void* out = nullptr;  // [rows, channels]
  int32_t* arg = nullptr;  // [rows, channels] for kMax and kMin
};

struct VoxelScatterBackwardArgs {
  const void* grad = nullptr;  // [rows, channels] contiguous
  DType dtype = DType::kFloat;
  ScatterReduce reduce = ScatterReduce::kMean;
  int64_t points = 0;
  int64_t channels = 0;
  int64_t rows = 0;
  const int32_t* point_voxel = nullptr;  // [points]
  const int32_t* offsets = nullptr;  // [rows + 1]
  const int32_t* arg = nullptr;  // [rows, channels] for kMax and kMin
  void* grad_feats = nullptr;  // [points, channels]
};

TORCHVOX_EXPORT int64_t workspace_bytes(const VoxelScatterArgs& args, const Target& target);
TORCHVOX_EXPORT int64_t workspace_bytes(const VoxelScatterBackwardArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const VoxelScatterArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
TORCHVOX_EXPORT void run_cpu(const VoxelScatterBackwardArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const VoxelScatterArgs& args, void* workspace,
                                   const CudaContext& context);
TORCHVOX_EXPORT cudaError_t launch(const VoxelScatterBackwardArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
