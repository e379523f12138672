// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbors/ball_query/kernels.cuh"

namespace torchvox {

int64_t ball_cuda_workspace_bytes(const BallQueryArgs& args, const Target& target) {
  const bool cells = make_ball_plan(args, target) == BallPlan::kCells;
  return cells ? ball_cells_workspace_bytes(args) : 0;
}

cudaError_t launch(const BallQueryArgs& args, void* workspace, const CudaContext& context) {
  if (args.rows() == 0) return cudaSuccess;
  switch (make_ball_plan(args, context.target)) {
    case BallPlan::kCells: return launch_ball_cells(args, workspace, context);
    case BallPlan::kGeneric: return launch_ball_generic(args, context);
    case BallPlan::kScan: break;
  }
  return launch_ball_scan(args, context);
}

}  // namespace torchvox
