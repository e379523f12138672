// SPDX-License-Identifier: Apache-2.0
//
// sparse_batch_norm and its gradients on the GPU: sums of blocks of rows, the levels above them,
// the channels, then the elements.
#include "csrc/kernels/core/tree_sum.cuh"
#include "csrc/kernels/sparse/norm.h"

namespace torchvox {
namespace {

constexpr int kBlockRows = 1024;  // two levels of the tree: each warp sums 32 rows
constexpr int kFinishThreads = 256;
static_assert(kLastTreeRows * 2 == kFinishThreads, "a warp sums 32 rows of one sum");

struct NormWork {
  void* channels;
  TreeLevels tree;

  NormWork(const SparseNormArgs& args, Workspace& workspace)
      : channels(workspace.take<SparseNormChannel<double>>(args.channels)),
        tree(args.sums() ? ceil_div<int64_t>(args.rows, kBlockRows) : 0, 2 * args.channels,
             workspace) {}
};

// One block per kBlockRows rows and 32 channels, a lane per channel. Writes the block's sums to one
// row of `sums` [blocks, 2, channels].
template <class T, bool kGradient>
__global__ void __launch_bounds__(kBlockRows)
    sums_kernel(const __grid_constant__ SparseNormArgs args, double* sums) {
  using Real = compute_t<T>;
  __shared__ double parts[2][32][32];
  let_next_begin();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t chunks = ceil_div<int64_t>(args.channels, 32);
  const int64_t block = blockIdx.x / chunks, channel = 32 * (blockIdx.x % chunks) + lane;
  const int64_t begin = block * kBlockRows + warp * kTreeWidth, valid = args.valid();
  const int64_t end = begin + kTreeWidth < valid ? begin + kTreeWidth : valid;
  double first = 0, second = 0;
  if (channel < args.channels) {
    const Real mean = kGradient ? static_cast<const Real*>(args.mean)[channel] : Real(0);
#pragma unroll 8
    for (int64_t row = begin; row < end; ++row) {
      add_terms<T, kGradient>(args, row * args.channels + channel, mean, first, second);
    }
  }
  parts[0][warp][lane] = first;
  parts[1][warp][lane] = second;
  __syncthreads();
  if (warp > 1 || channel >= args.channels) return;
  double sum = 0;
#pragma unroll
  for (int w = 0; w < 32; ++w) sum += parts[warp][w][lane];
  sums[(2 * block + warp) * args.channels + channel] = sum;
}

// One block per 32 channels: adds up the last level of the tree, `sums` [rows, 2, channels], each
// warp 32 rows of one of the two sums.
template <class Real>
__global__ void __launch_bounds__(kFinishThreads)
    finish_kernel(const __grid_constant__ SparseNormArgs args, const double* sums, int64_t rows,
                  SparseNormChannel<Real>* channels) {
  __shared__ double parts[kFinishThreads / 32][32];
  let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t channel = 32 * int64_t{blockIdx.x} + lane, begin = warp / 2 * kTreeWidth;
  double part = 0;
  if (channel < args.channels) {
#pragma unroll 8
    for (int64_t row = begin; row < begin + kTreeWidth && row < rows; ++row) {
      part += sums[(2 * row + warp % 2) * args.channels + channel];
    }
  }
  parts[warp][lane] = part;
  __syncthreads();
  if (warp > 0 || channel >= args.channels) return;
  double total[2] = {};
#pragma unroll
  for (int w = 0; w < kFinishThreads / 32; ++w) total[w % 2] += parts[w][lane];
  channels[channel].finish(args, channel, total[0], total[1]);
}

// kWidth channels of a row per thread, side by side along x; a thread keeps them and walks over
// rows.
template <class T, bool kGradient, int kWidth>
__global__ void __launch_bounds__(kRowThreads)
    rows_kernel(const __grid_constant__ SparseNormArgs args,
                const SparseNormChannel<compute_t<T>>* channels) {
  wait_for_previous();
  const int64_t valid = args.valid();
  for (int64_t first = kWidth * (int64_t{blockIdx.y} * blockDim.x + threadIdx.x);
       first < args.channels; first += kWidth * (int64_t{gridDim.y} * blockDim.x)) {
    SparseNormChannel<compute_t<T>> channel[kWidth];
#pragma unroll
    for (int c = 0; c < kWidth; ++c) channel[c] = channels[first + c];
    for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y; row < args.rows;
         row += int64_t{gridDim.x} * blockDim.y) {
      const int64_t at = row * args.channels + first;
      Channels<compute_t<T>, kWidth> x, g;
      if (row < valid) {
        x = load_items<T, kWidth>(static_cast<const T*>(args.features) + at);
        if (kGradient) g = load_items<T, kWidth>(static_cast<const T*>(args.grad) + at);
#pragma unroll
        for (int c = 0; c < kWidth; ++c) {
          x.at[c] = channel[c].template value<kGradient>(x.at[c], g.at[c], args.training);
        }
      }
      store_items(static_cast<T*>(args.out) + at, x);
    }
  }
}

template <class T, bool kGradient>
cudaError_t launch_typed(const SparseNormArgs& args, const NormWork& work,
                         const CudaContext& context) {
  const auto chunks = ceil_div<int64_t>(args.channels, 32);
  const int64_t blocks = args.sums() ? ceil_div<int64_t>(args.rows, kBlockRows) : 0;
  auto* const channels = static_cast<SparseNormChannel<compute_t<T>>*>(work.channels);
  const auto finish = finish_kernel<compute_t<T>>;
  if (blocks > 0) {
    TORCHVOX_CUDA_CHECK(launch_blocks(sums_kernel<T, kGradient>, grid_x(blocks * chunks),
                                      kBlockRows, context.stream, args, work.tree.first()));
    TORCHVOX_CUDA_CHECK(work.tree.launch(context));
    TORCHVOX_CUDA_CHECK(launch_after(finish, grid_x(chunks), kFinishThreads, context, args,
                                     work.tree.last(), work.tree.last_rows(), channels));
  } else {
    TORCHVOX_CUDA_CHECK(launch_blocks(finish, grid_x(chunks), kFinishThreads, context.stream, args,
                                      work.tree.last(), 0, channels));
  }
  const auto launch_rows = [&](auto width) {
    const int64_t packs = args.channels / width();
    const dim3 threads = block_of(packs);
    const dim3 blocks(blocks_for(args.rows, static_cast<int>(threads.y), context.target),
                      grid_y(ceil_div<int64_t>(packs, threads.x)));
    return launch_after_sharing(rows_kernel<T, kGradient, width()>, blocks, threads, 0, context,
                                args, channels);
  };
  const std::integral_constant<int, kItemsPerWord<T>> width;
  return args.channels % width() == 0 && is_aligned(args.features) && is_aligned(args.grad) &&
          is_aligned(args.out)
      ? launch_rows(width)
      : launch_rows(std::integral_constant<int, 1>());
}

}  // namespace

int64_t workspace_bytes_cuda(const SparseNormArgs& args, const Target&) {
  return carved_bytes<NormWork>(args);
}

cudaError_t launch(const SparseNormArgs& args, void* memory, const CudaContext& context) {
  const auto work = carve<NormWork>(memory, args);
  return with_norm_types(args, [&](auto type, auto gradient) {
    return launch_typed<decltype(type), gradient()>(args, work, context);
  });
}

}  // namespace torchvox
