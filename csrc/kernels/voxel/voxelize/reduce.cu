// SPDX-License-Identifier: Apache-2.0
//
// Kernels and launch of the last step, see reduce.cuh.
#include <algorithm>

#include "csrc/kernels/voxel/voxelize/reduce.cuh"

namespace torchvox {
namespace {

constexpr int kResident = 4;  // blocks per multiprocessor

// Blocks, warps or lanes reduce one segment each, by its size: they read its points by perm and
// write its row. Then threads of the grid write the unused rows.
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

struct ReduceKernels {
  template <class Real, ReduceKind kKind, bool kCommon = false>
  static VoxelKernel of() {
    return reduce_kernel<Real, kKind, kCommon>;
  }
};

}  // namespace

cudaError_t reduce_voxels(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  // Threads for the voxels that may exist, or for the bytes of rows that may stay unused.
  const int64_t capacity = args.capacity();
  const int64_t row_bytes =
      20 + (args.features != nullptr ? args.row_values() * bytes_of(args.out_dtype) : 0);
  const int64_t threads =
      std::max(std::min(capacity, work.voxel_limit) * kSmallSegment, capacity * row_bytes / 64);
  const unsigned blocks = blocks_for(threads, kVoxelThreads, context.target, kResident);
  return launch_after(kernel_for<ReduceKernels>(args, work), blocks, kVoxelThreads, context, args,
                      work);
}

}  // namespace torchvox
