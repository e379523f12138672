// SPDX-License-Identifier: Apache-2.0
//
// anchor_loss and its gradient on the GPU, whose maps are read once each.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/targets/anchor_loss.h"

namespace torchvox {
namespace {

constexpr int kThreads = kTreeValues;

// The sum of one value per thread by halves as in kTreeValues, in the block's first thread. Every
// thread of the block calls.
__device__ double block_sum(double value) {
  __shared__ double upper[kThreads / 2];
  const int rank = threadIdx.x;
  for (int step = kThreads / 2; step >= 32; step /= 2) {
    __syncthreads();
    if (rank >= step && rank < 2 * step) upper[rank - step] = value;
    __syncthreads();
    if (rank < step) value += upper[rank];
  }
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(kFullWarp, value, step);
  return value;
}

// One block per 256 anchors, and samples by blockIdx.y: one thread per anchor reads its values and
// calculates its terms; the block writes one sum per term and sample.
template <class M>
__global__ void __launch_bounds__(kThreads)
    terms_kernel(const __grid_constant__ AnchorLossArgs args, const LossScratch scratch) {
  const int64_t i = global_thread();
  for (int64_t batch = blockIdx.y; batch < args.batches; batch += gridDim.y) {
    AnchorTerms<compute_t<M>> terms{};
    bool positive = false;
    if (i < args.num_anchors()) {
      const AnchorPlace place(args, batch, i);
      terms = anchor_terms<M>(args, place);
      positive = place.box >= 0;
    }
    const bool any_positive = __syncthreads_or(positive);
    for (int t = 0; t < kLossTerms; ++t) {
      const double sum = t == 0 || any_positive ? block_sum(terms.at[t]) : 0.0;
      if (threadIdx.x == 0) {
        scratch.sums[(batch * kLossTerms + t) * scratch.blocks + blockIdx.x] = sum;
      }
    }
  }
}

// One block per term of a sample: adds up the sums of its blocks of anchors, level by level, and
// writes the loss. Each sum of a level overwrites values that the block has already read.
template <class M>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ AnchorLossArgs args, const LossScratch scratch) {
  for (int64_t i = blockIdx.x; i < args.batches * kLossTerms; i += gridDim.x) {
    double* const sums = scratch.sums + i * scratch.blocks;
    int64_t count = scratch.blocks;
    for (; count > 1; count = tree_blocks(count)) {
      for (int64_t block = 0; block < tree_blocks(count); ++block) {
        const int64_t at = block * kThreads + threadIdx.x;
        const double sum = block_sum(at < count ? sums[at] : 0.0);
        if (threadIdx.x == 0) sums[block] = sum;
      }
      __syncthreads();
    }
    if (threadIdx.x == 0) write_loss<M>(args, i, count > 0 ? sums[0] : 0.0);
  }
}

// One thread per anchor, samples by blockIdx.y: reads what the loss read and writes the gradient of
// all of the anchor's values.
template <class M>
__global__ void __launch_bounds__(kThreads)
    gradient_kernel(const __grid_constant__ AnchorLossBackwardArgs args) {
  const int64_t i = global_thread();
  if (i >= args.forward.num_anchors()) return;
  for (int64_t batch = blockIdx.y; batch < args.forward.batches; batch += gridDim.y) {
    anchor_gradient<M>(args, AnchorPlace(args.forward, batch, i));
  }
}

dim3 grid_of(const AnchorLossArgs& args) {
  return dim3(grid_x(tree_blocks(args.num_anchors())), grid_y(args.batches));
}

}  // namespace

cudaError_t launch(const AnchorLossArgs& args, void* memory, const CudaContext& context) {
  if (args.batches == 0) return cudaSuccess;
  const auto scratch = carve<LossScratch>(memory, args);
  return with_point_type(args.dtype, [&](auto type) {
    using M = decltype(type);
    if (args.num_anchors() > 0) {
      TORCHVOX_CUDA_CHECK(
          launch_blocks(terms_kernel<M>, grid_of(args), kThreads, context.stream, args, scratch));
    }
    const unsigned blocks = blocks_for(args.batches * kLossTerms, 1, context.target);
    return launch_blocks(sum_kernel<M>, blocks, kThreads, context.stream, args, scratch);
  });
}

cudaError_t launch(const AnchorLossBackwardArgs& args, void*, const CudaContext& context) {
  if (args.forward.batches * args.forward.num_anchors() == 0) return cudaSuccess;
  return with_point_type(args.forward.dtype, [&](auto type) {
    return launch_blocks(gradient_kernel<decltype(type)>, grid_of(args.forward), kThreads,
                         context.stream, args);
  });
}

}  // namespace torchvox
