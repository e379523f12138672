// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/boxes/nms/argsort.h"
#include "csrc/kernels/boxes/nms/scratch.cuh"
#include "csrc/kernels/core/launch.cuh"

namespace torchvox {

int64_t rotated_nms_cuda_workspace_bytes(const RotatedNmsArgs& args) {
  Workspace workspace;
  const ScoreOrder order(args, workspace);
  workspace.take<char>(score_order_bytes(args));
  const NmsScratch scratch(args.nms, workspace);
  return workspace.bytes();
}

cudaError_t launch(const RotatedNmsArgs& args, void* memory, const CudaContext& context) {
  if (args.nms.segments == 0) return cudaSuccess;
  Workspace workspace(memory);
  const ScoreOrder order(args, workspace);
  const NmsArgs nms = order.applied_to(args.nms);
  void* const for_order = workspace.take<char>(score_order_bytes(args));
  const NmsScratch scratch(nms, workspace);
  TORCHVOX_CUDA_CHECK(make_score_order(args, order, scratch, for_order, context));
  return launch_nms_chunks(nms, scratch, context);
}

}  // namespace torchvox
