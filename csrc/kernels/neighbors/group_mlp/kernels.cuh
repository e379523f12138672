// SPDX-License-Identifier: Apache-2.0
//
// The workspace of group_mlp_max, and the launchers of the tensor-core kernels.
#pragma once

#include <cuda_runtime.h>

#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"

namespace torchvox {

struct MlpWorkspace {
  void* block = nullptr;  // tensor cores: as MlpPacked; portable: transposed weights
  void* terms = nullptr;  // tensor cores, with features: [clouds * capacity + 1, width * 32]
  void* scratch = nullptr;  // portable, if shared memory is too small: two buffers per block

  MlpWorkspace(const GroupMlpArgs& args, const GroupMlpPlan& plan, Workspace& workspace) {
    if (plan.tensor_cores) {
      block = workspace.take<char>(plan.packed.bytes());
      if (args.features && args.channels > 0) {
        const int64_t rows =
            args.points.clouds * args.points.rows + 1;  // the last one for indices outside
        terms = workspace.take<uint16_t>(rows * plan.packed.width * 32);
      }
      return;
    }
    const int64_t value = args.mlp_dtype == DType::kDouble ? 8 : 4;
    int64_t weights = 0;
    for (int l = 0; l < args.layers; ++l) weights += args.layer[l].in * args.layer[l].out;
    block = workspace.take<char>(weights * value);
    if (!plan.in_shared) {
      scratch = workspace.take<char>(2 * plan.tile * plan.widest * value * plan.blocks);
    }
  }
};

// Packs the layers and computes the features' part of the first, for start_mma_mlp.
cudaError_t start_mma_prepare(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                              const MlpWorkspace& workspace, cudaStream_t stream);
cudaError_t start_mma_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan,
                          const MlpWorkspace& workspace, cudaStream_t stream);

}  // namespace torchvox
