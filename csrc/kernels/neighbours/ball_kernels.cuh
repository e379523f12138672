// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbours/ball_plan.h"

namespace torchvox {

inline constexpr unsigned kFullWarp = 0xffffffffu;

// The launchers of ball_query.cu, a file each.
cudaError_t launch_ball_scan(const BallQueryArgs& args, const CudaContext& context);
cudaError_t launch_ball_generic(const BallQueryArgs& args, const CudaContext& context);

}  // namespace torchvox
