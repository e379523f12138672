// SPDX-License-Identifier: Apache-2.0
//
// voxel_keys on the GPU: one thread per row.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/filter/voxel_key.cuh"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread per row: reads a point, writes its key; the block adds its counts at the end.
template <class T, class Real>
__global__ void __launch_bounds__(kThreads)
    keys_kernel(const __grid_constant__ VoxelKeysArgs args) {
  __shared__ KeyTally tally;
  tally.begin();
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < args.points.rows;
       first += global_stride()) {
    const int64_t row = first + threadIdx.x;
    const int64_t key = tally.locate<T, Real>(args, row);
    if (row < args.points.rows) args.keys[row] = key;
  }
  tally.flush(args);
}

}  // namespace

cudaError_t make_keys(const VoxelKeysArgs& args, const CudaContext& context) {
  return with_key_types(args, [&](auto type, auto real) {
    return launch_items(keys_kernel<decltype(type), decltype(real)>, args.points.rows, kThreads,
                        context, args);
  });
}

cudaError_t launch(const VoxelKeysArgs& args, void*, const CudaContext& context) {
  const int64_t counts = (args.points.clouds + 1) * kKeyCounts;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, counts * sizeof(int32_t), context.stream));
  return make_keys(args, context);
}

}  // namespace torchvox
