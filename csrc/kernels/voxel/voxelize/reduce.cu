// SPDX-License-Identifier: Apache-2.0
//
// Instances and launch of the last step, reduce.cuh.
#include <algorithm>

#include "csrc/kernels/voxel/voxelize/reduce.cuh"

namespace torchvox {
namespace {

constexpr int kResident = 4;  // blocks a multiprocessor

template <class Real, ReduceKind kKind, bool kCommon = false>
__global__ void __launch_bounds__(kVoxelThreads, kResident)
    reduce_kernel(VoxelizeArgs args, VoxelWork work) {
  assume_common<kCommon>(args, work);
  wait_for_previous();
  if (kCommon && kKind == ReduceKind::kSum) args.reduce = VoxelReduce::kMean;
  __shared__ WarpShared<Real> warps[kVoxelThreads / 32];
  reduce_rest<Real, kKind>(args, work, work.totals->rows, warps);
  fill_unused_rows(args, work.totals->rows);
}

using ReduceKernel = void (*)(VoxelizeArgs, VoxelWork);

template <class Real>
ReduceKernel kernel_of(const VoxelizeArgs& args) {
  if (args.reduce == VoxelReduce::kNone) return reduce_kernel<Real, ReduceKind::kCopy>;
  return args.is_best() ? reduce_kernel<Real, ReduceKind::kBest>
                        : reduce_kernel<Real, ReduceKind::kSum>;
}

ReduceKernel kernel_for(const VoxelizeArgs& args, const VoxelWork& work) {
  if (args.features == nullptr) return reduce_kernel<float, ReduceKind::kNothing>;
  if (work.common && args.reduce == VoxelReduce::kNone) {
    return reduce_kernel<float, ReduceKind::kCopy, true>;
  }
  if (work.common) return reduce_kernel<float, ReduceKind::kSum, true>;
  return args.points.dtype == DType::kDouble ? kernel_of<double>(args) : kernel_of<float>(args);
}

}  // namespace

cudaError_t reduce_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  // Threads for the voxels that may exist, or for the rows that may stay unused.
  const int64_t capacity = args.capacity();
  const int64_t row_bytes =
      20 + (args.features != nullptr ? args.row_values() * bytes_of(args.out_dtype) : 0);
  const int64_t threads =
      std::max(std::min(capacity, work.voxel_limit) * kSmallSegment, capacity * row_bytes / 64);
  const unsigned blocks = blocks_for(threads, kVoxelThreads, context.target, kResident);
  return launch_after(kernel_for(args, work), blocks, kVoxelThreads, context, args, work);
}

}  // namespace torchvox
