// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/sampling/fps/device.cuh"
#include "csrc/kernels/sampling/fps/kernels.cuh"

namespace torchvox {
namespace {

constexpr int kFillThreads = 256;

// Ragged slots that belong to no cloud: those before out_ptr[0] and those past out_ptr[-1].
__global__ void __launch_bounds__(kFillThreads)
    fill_outside_kernel(const __grid_constant__ FpsArgs args) {
  const FpsCloud nowhere{};
  const int64_t begin = clamp_index(args.out_ptr[0], 0, args.samples);
  const int64_t end = clamp_index(args.out_ptr[args.clouds], begin, args.samples);
  for (int64_t j = global_thread(); j < args.samples; j += global_stride()) {
    if (j < begin || j >= end) write_sample(args, nowhere, j, -1, 0.0f);
  }
}

}  // namespace

int64_t fps_cuda_workspace_bytes(const FpsArgs& args, const Target& target) {
  const FpsPlan plan = make_fps_plan(args, target);
  Workspace workspace;
  if (plan.large == FpsPlan::Large::kLazy) {
    const SpatialOrder order(args, plan, workspace);
    LazyScratch(plan, order, workspace);
  }
  if (plan.large == FpsPlan::Large::kGeneric) GenericScratch(args, plan, workspace);
  return workspace.bytes();
}

cudaError_t launch(const FpsArgs& args, void* memory, const CudaContext& context) {
  if (args.samples == 0) return cudaSuccess;
  const cudaStream_t stream = context.stream;
  if (args.ragged) {
    const unsigned blocks = blocks_for(args.samples, kFillThreads, context.target);
    fill_outside_kernel<<<blocks, kFillThreads, 0, stream>>>(args);
    TORCHVOX_CUDA_CHECK(cudaGetLastError());
  }
  if (args.clouds == 0) return cudaSuccess;

  const FpsPlan plan = make_fps_plan(args, context.target);
  int64_t above = -1;
  for (const FpsPlan::BlockClass& block : plan.classes) {
    TORCHVOX_CUDA_CHECK(launch_fps_block(args, block, above, stream));
    above = block.room();
  }
  if (plan.large == FpsPlan::Large::kNone) return cudaSuccess;
  Workspace workspace(memory);
  if (plan.large == FpsPlan::Large::kGeneric) {
    const GenericScratch scratch(args, plan, workspace);
    for (int64_t b = 0; b < args.clouds; b += plan.clouds_at_once) {
      const int64_t clouds =
          b + plan.clouds_at_once < args.clouds ? plan.clouds_at_once : args.clouds - b;
      TORCHVOX_CUDA_CHECK(launch_fps_generic(args, plan, scratch, b, clouds, stream));
    }
    return cudaSuccess;
  }
  SpatialOrder order(args, plan, workspace);
  const LazyScratch scratch(plan, order, workspace);
  for (int64_t b = 0; b < args.clouds; b += plan.clouds_at_once) {
    order.first_cloud = b;
    order.clouds = b + plan.clouds_at_once < args.clouds ? plan.clouds_at_once : args.clouds - b;
    if (!args.ragged) order.points = order.clouds * args.capacity;
    TORCHVOX_CUDA_CHECK(make_spatial_order(args, order, stream));
    TORCHVOX_CUDA_CHECK(launch_fps_lazy(args, plan, order, scratch, stream));
  }
  return cudaSuccess;
}

}  // namespace torchvox
