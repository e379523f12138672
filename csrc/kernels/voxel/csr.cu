// SPDX-License-Identifier: Apache-2.0
//
// voxel_csr on the GPU: a radix sort of the points by row, which keeps their order within a row;
// one thread per point before it, one per point or row after it.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/spatial/radix_sort.h"
#include "csrc/kernels/voxel/csr.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

// One thread per point: writes its row as the sort key. Dropped points get the key `rows` and come
// last.
__global__ void __launch_bounds__(kThreads) keys_kernel(VoxelCsrArgs args, SortBuffers sort) {
  for (int64_t i = global_thread(); i < args.points; i += global_stride()) {
    const int64_t row = args.point_voxel[i];
    sort.keys[0][i] = static_cast<uint32_t>(row >= 0 && row < args.rows ? row : args.rows);
    sort.values[0][i] = static_cast<uint32_t>(i);
  }
}

// Thread i finds where row i begins among the sorted keys by binary search, and writes entry i of
// perm from the sorted points.
__global__ void __launch_bounds__(kThreads) offsets_kernel(VoxelCsrArgs args, SortBuffers sort) {
  const uint32_t* const keys = sort.keys[sort.current];
  for (int64_t i = global_thread(); i <= args.rows || i < args.points; i += global_stride()) {
    if (i <= args.rows) {
      args.offsets[i] = static_cast<int32_t>(
          first_where(int64_t{0}, args.points, [&](int64_t k) { return keys[k] >= i; }));
    }
    if (i < args.points) {
      args.perm[i] = keys[i] == args.rows ? -1 : static_cast<int32_t>(sort.values[sort.current][i]);
    }
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const VoxelCsrArgs& args, const Target&) {
  return carved_bytes<SortBuffers>(args.points);
}

cudaError_t launch(const VoxelCsrArgs& args, void* memory, const CudaContext& context) {
  auto sort = carve<SortBuffers>(memory, args.points);
  if (args.points > 0) {
    TORCHVOX_CUDA_CHECK(launch_items(keys_kernel, args.points, kThreads, context, args, sort));
    TORCHVOX_CUDA_CHECK(radix_sort(sort, args.points, key_bits(args.rows + 1), context.stream));
  }
  const int64_t count = args.points > args.rows ? args.points : args.rows + 1;
  return launch_items(offsets_kernel, count, kThreads, context, args, sort);
}

}  // namespace torchvox
