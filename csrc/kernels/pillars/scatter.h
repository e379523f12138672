// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"
#include "csrc/kernels/pillars/map.h"

namespace torchvox {

// Rows of features to their cells; of rows with one cell the lowest. 0 where no row is.
struct PillarScatterArgs {
  PillarRows rows;
  const void* feats = nullptr;  // [rows, channels]
  DType dtype = DType::kFloat;
  int64_t channels = 0;
  void* canvas = nullptr;  // [batches, ny, nx, channels]
};

struct PillarScatterBackwardArgs {
  PillarRows rows;
  const void* grad = nullptr;  // [batches, channels, ny, nx], any strides
  int64_t grad_strides[4] = {0, 0, 0, 0};  // in elements
  DType dtype = DType::kFloat;
  int64_t channels = 0;
  void* grad_feats = nullptr;  // [rows, channels]
};

TORCHVOX_EXPORT int64_t workspace_bytes(const PillarScatterArgs& args, const Target& target);
TORCHVOX_EXPORT int64_t workspace_bytes(const PillarScatterBackwardArgs& args,
                                        const Target& target);
TORCHVOX_EXPORT void run_cpu(const PillarScatterArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
TORCHVOX_EXPORT void run_cpu(const PillarScatterBackwardArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT cudaError_t launch(const PillarScatterArgs& args, void* workspace,
                                   const CudaContext& context);
TORCHVOX_EXPORT cudaError_t launch(const PillarScatterBackwardArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
