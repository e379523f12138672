// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbors/ball_query/plan.h"

namespace torchvox {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// The lower lanes.
__device__ __forceinline__ unsigned lanes_below(int lane) { return (1u << lane) - 1; }

// The launchers of ball_query.cu, a file each.
cudaError_t launch_ball_scan(const BallQueryArgs& args, const CudaContext& context);
cudaError_t launch_ball_generic(const BallQueryArgs& args, const CudaContext& context);
int64_t ball_cells_workspace_bytes(const BallQueryArgs& args);
cudaError_t launch_ball_cells(const BallQueryArgs& args, void* workspace,
                              const CudaContext& context);

}  // namespace torchvox
