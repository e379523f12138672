// SPDX-License-Identifier: Apache-2.0
//
// place_boxes on the GPU: one block per scene. A warp compares one try, or one candidate of a
// group, with the scene at a time, one box per lane; scene and candidates stay in the caches.
#include "csrc/kernels/boxes/place_boxes.h"
#include "csrc/kernels/core/launch.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 512;

// One block per scene: reads its boxes and candidates and writes the choices.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const __grid_constant__ PlaceBoxesArgs args, const PlaceScratch scratch) {
  __shared__ int32_t room;
  const Team team{static_cast<int>(threadIdx.x), kThreads, 32, &room};
  for (int64_t batch = blockIdx.x; batch < args.batches; batch += gridDim.x) {
    ScenePlacer(args, scratch, batch, team).run();
  }
}

}  // namespace

cudaError_t launch(const PlaceBoxesArgs& args, void* memory, const CudaContext& context) {
  if (args.batches * args.count == 0) return cudaSuccess;
  const auto scratch = carve<PlaceScratch>(memory, args);
  const unsigned blocks = blocks_for(args.batches, 1, context.target);
  return launch_blocks(place_kernel, blocks, kThreads, context.stream, args, scratch);
}

}  // namespace torchvox
