// SPDX-License-Identifier: Apache-2.0
//
// voxel_csr, voxel_scatter and its gradient on the GPU. CSR: a radix sort of (row, point); one
// thread a point or row before and after it. Scatter: one thread an element walks the list of its
// row. Gradient: one thread an element of a point. Each element is written once, without atomics.
#include <cub/device/device_radix_sort.cuh>

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/scatter.h"

namespace torchvox {

namespace {

constexpr int kThreads = 256;

// A stable sort of the points by row; dropped points get the key `rows` and come last.
struct SortWork {
  uint32_t* keys_in;
  uint32_t* keys_out;
  int32_t* points_in;
  void* temporary;
  size_t temporary_bytes = 0;
  int key_bits = 1;
  int64_t bytes;

  SortWork(const VoxelCsrArgs& args, void* base) {
    while ((args.rows >> key_bits) > 0) ++key_bits;
    Workspace workspace(base);
    keys_in = workspace.take<uint32_t>(args.points);
    keys_out = workspace.take<uint32_t>(args.points);
    points_in = workspace.take<int32_t>(args.points);
    sort(args, nullptr, nullptr);
    temporary = workspace.take<char>(static_cast<int64_t>(temporary_bytes));
    bytes = workspace.bytes();
  }
  cudaError_t sort(const VoxelCsrArgs& args, void* storage, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(storage, temporary_bytes, keys_in, keys_out, points_in,
                                           args.perm, args.points, 0, key_bits, stream);
  }
};

__global__ void __launch_bounds__(kThreads) keys_kernel(VoxelCsrArgs args, SortWork work) {
  for (int64_t i = global_thread(); i < args.points; i += global_stride()) {
    const int64_t row = args.point_voxel[i];
    work.keys_in[i] = static_cast<uint32_t>(row >= 0 && row < args.rows ? row : args.rows);
    work.points_in[i] = static_cast<int32_t>(i);
  }
}

// Thread t < rows + 1 finds where row t begins among the sorted keys; then the tail of perm is
// cleared by the threads of the dropped points.
__global__ void __launch_bounds__(kThreads) offsets_kernel(VoxelCsrArgs args, SortWork work) {
  for (int64_t i = global_thread(); i <= args.rows || i < args.points; i += global_stride()) {
    if (i <= args.rows) {
      args.offsets[i] = static_cast<int32_t>(
          first_where(int64_t{0}, args.points, [&](int64_t k) { return work.keys_out[k] >= i; }));
    }
    if (i < args.points && work.keys_out[i] == args.rows) args.perm[i] = -1;
  }
}

}  // namespace

int64_t workspace_bytes_cuda(const VoxelCsrArgs& args, const Target&) {
  return SortWork(args, nullptr).bytes;
}

cudaError_t launch(const VoxelCsrArgs& args, void* workspace, const CudaContext& context) {
  SortWork work(args, workspace);
  if (args.points > 0) {
    TORCHVOX_CUDA_CHECK(launch_items(keys_kernel, args.points, kThreads, context, args, work));
    TORCHVOX_CUDA_CHECK(work.sort(args, work.temporary, context.stream));
  }
  const int64_t count = args.points > args.rows ? args.points : args.rows + 1;
  return launch_items(offsets_kernel, count, kThreads, context, args, work);
}

// One thread an output element, channels fastest: the lanes of a warp share the row's list and read
// neighboring channels of the same point.
cudaError_t launch(const VoxelScatterArgs& args, void*, const CudaContext& context) {
  return with_point_type(args.dtype, [&](auto type) {
    return launch_elements<scatter_element<decltype(type)>>(args, args.rows * args.channels,
                                                            context);
  });
}

cudaError_t launch(const VoxelScatterBackwardArgs& args, void*, const CudaContext& context) {
  return with_point_type(args.dtype, [&](auto type) {
    return launch_elements<scatter_gradient<decltype(type)>>(args, args.points * args.channels,
                                                             context);
  });
}

}  // namespace torchvox
