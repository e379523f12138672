// SPDX-License-Identifier: Apache-2.0
//
// voxel_sum and voxel_mean in two steps, of which the first can run early.
#pragma once

#include "csrc/kernels/filter/exact_sum.h"

namespace torchvox {

cudaError_t clear_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context);
// Needs cleared sums. The next of a chain of launches, see launch_after().
cudaError_t add_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context);

}  // namespace torchvox
