// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxelize/backward.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread an element of the result, in order: coalesced writes, and reads of a voxel's row that
// the points of one voxel share in cache.
template <class Real>
__global__ void __launch_bounds__(kThreads) gather_kernel(VoxelizeBackwardArgs args) {
  const int64_t stride = global_stride();
  const int64_t point_step = stride / args.columns;
  const int64_t column_step = stride % args.columns;
  const int64_t values = args.rows * args.columns;
  int64_t point = global_thread() / args.columns;
  int64_t column = global_thread() % args.columns;
  for (int64_t at = global_thread(); at < values; at += stride) {
    store_as(args.grad_input, args.dtype, at, args.value<Real>(point, column));
    point += point_step;
    column += column_step;
    if (column >= args.columns) {
      column -= args.columns;
      ++point;
    }
  }
}

}  // namespace

cudaError_t launch(const VoxelizeBackwardArgs& args, void*, const CudaContext& context) {
  if (args.rows == 0 || args.columns == 0) return cudaSuccess;
  const unsigned blocks = blocks_for(args.rows * args.columns, kThreads, context.target);
  if (args.in_double()) {
    gather_kernel<double><<<blocks, kThreads, 0, context.stream>>>(args);
  } else {
    gather_kernel<float><<<blocks, kThreads, 0, context.stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace torchvox
