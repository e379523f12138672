// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "csrc/kernels/voxel/voxel_reduce.cuh"

namespace torchvox {
namespace {

template <class Real, ReduceKind kKind, bool kCommon = false>
__global__ void __launch_bounds__(kVoxelThreads, 4)
    reduce_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  if (kCommon && kKind == ReduceKind::kSum) args.reduce = VoxelReduce::kMean;
  __shared__ WarpShared<Real> warps[kVoxelThreads / 32];
  reduce_rest<Real, kKind>(args, work, work.totals->rows, warps);
}

template <class Real>
void launch_kind(const VoxelizeArgs& args, const VoxelWork& work, unsigned blocks,
                 cudaStream_t stream) {
  if (work.common && args.reduce == VoxelReduce::kNone) {
    reduce_kernel<float, ReduceKind::kCopy, true><<<blocks, kVoxelThreads, 0, stream>>>(args, work);
  } else if (work.common) {
    reduce_kernel<float, ReduceKind::kSum, true><<<blocks, kVoxelThreads, 0, stream>>>(args, work);
  } else if (args.reduce == VoxelReduce::kNone) {
    reduce_kernel<Real, ReduceKind::kCopy><<<blocks, kVoxelThreads, 0, stream>>>(args, work);
  } else if (args.is_best()) {
    reduce_kernel<Real, ReduceKind::kBest><<<blocks, kVoxelThreads, 0, stream>>>(args, work);
  } else {
    reduce_kernel<Real, ReduceKind::kSum><<<blocks, kVoxelThreads, 0, stream>>>(args, work);
  }
}

}  // namespace

cudaError_t reduce_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  // Threads for the voxels that may exist, or for the rows that may stay unused.
  const int64_t capacity = args.capacity();
  const int64_t row_bytes =
      20 + (args.features != nullptr ? args.row_values() * bytes_of(args.out_dtype) : 0);
  const int64_t threads =
      std::max(std::min(capacity, work.voxel_limit) * kSmallVoxel, capacity * row_bytes / 64);
  const unsigned blocks = blocks_for(threads, kVoxelThreads, context.target, 8);
  if (args.features == nullptr) {
    reduce_kernel<float, ReduceKind::kNothing>
        <<<blocks, kVoxelThreads, 0, context.stream>>>(args, work);
  } else if (args.points.dtype == DType::kDouble) {
    launch_kind<double>(args, work, blocks, context.stream);
  } else {
    launch_kind<float>(args, work, blocks, context.stream);
  }
  return cudaGetLastError();
}

}  // namespace torchvox
