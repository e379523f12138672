// SPDX-License-Identifier: Apache-2.0
//
// The boxes are taken 4096 at a time. One kernel finds, tile by tile, which of them would suppress
// which; a second decides them in order. Boxes of later chunks first meet all that were kept.
#include "csrc/kernels/boxes/nms/scratch.cuh"
#include "csrc/kernels/core/dependent_launch.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const __grid_constant__ NmsArgs args,
                   const __grid_constant__ NmsScratch scratch) {
  let_next_begin();
  wait_for_previous();
  for (int64_t i = global_thread(); i < args.segments * args.capacity; i += global_stride()) {
    const int64_t segment = i / args.capacity, position = i % args.capacity;
    if (position >= args.count(segment)) continue;
    scratch.write(args, segment, position, args.box_at(segment, position));
  }
}

}  // namespace

int64_t nms_cuda_workspace_bytes(const NmsArgs& args) {
  Workspace workspace;
  const NmsScratch scratch(args, workspace);
  return workspace.bytes();
}

cudaError_t launch_nms_chunks(const NmsArgs& args, const NmsScratch& scratch,
                              const CudaContext& context) {
  NmsChunk chunk{0};
  do {
    TORCHVOX_CUDA_CHECK(launch_nms_mask(args, scratch, chunk, context));
    TORCHVOX_CUDA_CHECK(launch_nms_decide(args, scratch, chunk, context));
    chunk.begin += kNmsChunk;
  } while (chunk.begin < args.capacity);
  return cudaSuccess;
}

cudaError_t launch(const NmsArgs& args, void* memory, const CudaContext& context) {
  if (args.segments == 0) return cudaSuccess;
  Workspace workspace(memory);
  const NmsScratch scratch(args, workspace);
  const int64_t boxes = args.segments * args.capacity;
  if (boxes > 0 && args.most > 0) {
    const unsigned blocks = blocks_for(boxes, kThreads, context.target);
    TORCHVOX_CUDA_CHECK(
        launch_after(prepare_kernel, dim3(blocks), kThreads, context, args, scratch));
  }
  return launch_nms_chunks(args, scratch, context);
}

}  // namespace torchvox
