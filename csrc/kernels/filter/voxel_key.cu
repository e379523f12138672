// SPDX-License-Identifier: Apache-2.0
//
// voxel_keys and voxel_cells on the GPU: one thread a row. Blocks add up the counts of the call
// before they touch it, warps those of a sample.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/filter/voxel_key.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(const __grid_constant__ VoxelKeysArgs args) {
  __shared__ int32_t sums[kKeyCounts];
  const CloudBatch& points = args.points;
  if (threadIdx.x < kKeyCounts) sums[threadIdx.x] = 0;
  __syncthreads();
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < points.rows;
       first += global_stride()) {
    const int64_t row = first + threadIdx.x;
    const int64_t sample = row < points.rows ? points.packed_owner(row) : -1;
    int column = -1;
    if (row < points.rows) {
      KeyCount found = kKeyCounts;
      args.keys[row] =
          sample < 0 ? kNoVoxelKey : args.template locate_row<T, Real>(row, sample, &found);
      if (sample >= 0) column = static_cast<int>(found);
    }
    for (int c = 0; c < kKeyCounts; ++c) {
      const unsigned votes = __ballot_sync(kFullWarp, column == c);
      if (threadIdx.x % 32 == 0 && votes) atomicAdd(&sums[c], __popc(votes));
    }
    if (points.clouds > 1) {
      const int64_t place = column < 0 ? -1 : (sample + 1) * kKeyCounts + column;
      const unsigned same = __match_any_sync(kFullWarp, static_cast<long long>(place));
      if (place >= 0 && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(same)) - 1) {
        atomicAdd(&args.counts[place], __popc(same));
      }
    }
  }
  __syncthreads();
  if (threadIdx.x >= kKeyCounts || sums[threadIdx.x] == 0) return;
  atomicAdd(&args.counts[threadIdx.x], sums[threadIdx.x]);
  if (points.clouds == 1) atomicAdd(&args.counts[kKeyCounts + threadIdx.x], sums[threadIdx.x]);
}

}  // namespace

cudaError_t launch(const VoxelKeysArgs& args, void*, const CudaContext& context) {
  const int64_t counts = (args.points.clouds + 1) * kKeyCounts;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, counts * sizeof(int32_t), context.stream));
  return with_key_types(args, [&](auto type, auto real) {
    return launch_items(keys_kernel<decltype(type), decltype(real)>, args.points.rows, kThreads,
                        context, args);
  });
}

cudaError_t launch(const VoxelCellsArgs& args, void*, const CudaContext& context) {
  return launch_elements<write_cells>(args, args.rows, context);
}

}  // namespace torchvox
