// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "csrc/kernels/core/export.h"
#include "csrc/kernels/core/parallel.h"
#include "csrc/kernels/core/target.h"

namespace torchvox {

// Lists the points of each row: row r owns perm[offsets[r] .. offsets[r + 1]), ascending. A point
// whose row is outside [0, rows) is dropped; the tail of perm is -1.
struct VoxelCsrArgs {
  const int32_t* point_voxel = nullptr;  // [points]
  int64_t points = 0;
  int64_t rows = 0;
  int32_t* offsets = nullptr;  // [rows + 1]
  int32_t* perm = nullptr;  // [points]
};

TORCHVOX_EXPORT int64_t workspace_bytes(const VoxelCsrArgs& args, const Target& target);
TORCHVOX_EXPORT void run_cpu(const VoxelCsrArgs& args, void* workspace,
                             const ParallelFor& parallel_for);
#ifdef TORCHVOX_CUDA
TORCHVOX_EXPORT int64_t workspace_bytes_cuda(const VoxelCsrArgs& args);
TORCHVOX_EXPORT cudaError_t launch(const VoxelCsrArgs& args, void* workspace,
                                   const CudaContext& context);
#endif

}  // namespace torchvox
