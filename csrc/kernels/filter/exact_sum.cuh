// SPDX-License-Identifier: Apache-2.0
//
// voxel_sum and voxel_mean in two steps, the first of which can be taken early.
#pragma once

#include "csrc/kernels/filter/exact_sum.h"

namespace torchvox {

cudaError_t clear_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context);
// Over sums that are cleared; in a chain of launches, as launch_after() has it.
cudaError_t add_sums(const VoxelSumArgs& args, void* memory, const CudaContext& context);

}  // namespace torchvox
