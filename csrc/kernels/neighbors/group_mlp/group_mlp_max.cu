// SPDX-License-Identifier: Apache-2.0
//
// group_mlp_max on the GPU: its workspace, and the launch of the tensor-core or the portable
// kernels.
#include "csrc/kernels/neighbors/group_mlp/group_mlp_max.h"

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/neighbors/group_mlp/kernels.cuh"

namespace torchvox {
namespace {

MlpWorkspace carve_mlp(const GroupMlpArgs& args, const GroupMlpPlan& plan, Workspace& workspace) {
  MlpWorkspace carved;
  if (plan.tensor_cores) {
    carved.block = workspace.take<char>(plan.packed.bytes());
    if (args.features && args.channels > 0) {
      const int64_t rows =
          args.points.clouds * args.points.rows + 1;  // the last for indices outside
      carved.terms = workspace.take<uint16_t>(rows * plan.packed.width * 32);
    }
    return carved;
  }
  const int64_t value = args.mlp_dtype == DType::kDouble ? 8 : 4;
  int64_t weights = 0;
  for (int l = 0; l < args.layers; ++l) weights += args.layer[l].in * args.layer[l].out;
  carved.block = workspace.take<char>(weights * value);
  if (!plan.in_shared) {
    carved.scratch = workspace.take<char>(2 * plan.tile * plan.widest * value * plan.blocks);
  }
  return carved;
}

}  // namespace

int64_t workspace_bytes_cuda(const GroupMlpArgs& args, const Target& target) {
  return carved_bytes<carve_mlp>(args, make_group_mlp_plan(args, target));
}

cudaError_t launch(const GroupMlpArgs& args, void* memory, const CudaContext& context) {
  const int64_t values = args.rows() * args.layer[args.layers - 1].out;
  if (values == 0) return cudaSuccess;
  if (args.slots == 0) {
    return cudaMemsetAsync(args.out, 0, values * bytes_of(args.mlp_dtype), context.stream);
  }
  const GroupMlpPlan plan = make_group_mlp_plan(args, context.target);
  Workspace workspace(memory);
  const MlpWorkspace carved = carve_mlp(args, plan, workspace);
  return plan.tensor_cores ? start_mma_mlp(args, plan, carved, context.stream)
                           : start_portable_mlp(args, plan, carved, context.stream);
}

}  // namespace torchvox
