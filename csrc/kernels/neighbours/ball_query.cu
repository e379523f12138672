// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/neighbours/ball_kernels.cuh"

namespace torchvox {

int64_t ball_cuda_workspace_bytes(const BallQueryArgs&, const Target&) { return 0; }

cudaError_t launch(const BallQueryArgs& args, void*, const CudaContext& context) {
  if (args.rows() == 0) return cudaSuccess;
  switch (make_ball_plan(args, context.target)) {
    case BallPlan::kGeneric: return launch_ball_generic(args, context);
    case BallPlan::kCells:
    case BallPlan::kScan: break;
  }
  return launch_ball_scan(args, context);
}

}  // namespace torchvox
