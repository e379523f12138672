// SPDX-License-Identifier: Apache-2.0
//
// The workspace and the launchers behind group_mlp_max.cu.
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"

namespace torchvox {

struct MlpWorkspace {
  void* block = nullptr;  // tensor cores: as MlpPacked; portable: transposed weights
  void* terms = nullptr;  // tensor cores, with features: [clouds * capacity + 1, width * 32]
  void* scratch = nullptr;  // portable, where shared memory is too small: two buffers a block
};

// Packs the layers and computes the features' part of the first, for start_mma_mlp.
cudaError_t start_mma_prepare(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                              const MlpWorkspace& workspace, cudaStream_t stream);
cudaError_t start_mma_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                          const MlpWorkspace& workspace, cudaStream_t stream);
cudaError_t start_portable_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                               const MlpWorkspace& workspace, cudaStream_t stream);

}  // namespace torchvox
