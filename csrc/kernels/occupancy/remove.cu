// SPDX-License-Identifier: Apache-2.0
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>

#include "csrc/kernels/occupancy/remove.h"

namespace torchvox {
namespace {

struct Leaves {
  RemoveArgs args;
  __host__ __device__ int32_t operator()(int64_t slot) const { return args.leaves(slot); }
};
cudaError_t sum_leaving(void* storage, size_t& bytes, const Removal& removal, cudaStream_t stream) {
  const auto leaves =
      thrust::make_transform_iterator(thrust::make_counting_iterator(int64_t{0}), Leaves{removal});
  return cub::DeviceScan::InclusiveSum(storage, bytes, leaves, removal.leaving,
                                       removal.state.capacity, stream);
}

}  // namespace

int64_t workspace_bytes_cuda(const RemoveArgs& args, const Target&) {
  Workspace workspace;
  size_t bytes = 0;
  sum_leaving(nullptr, bytes, Removal(args, workspace), nullptr);
  return workspace.bytes() + static_cast<int64_t>(bytes);
}

cudaError_t launch(const RemoveArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const Removal removal(args, workspace);
  const int64_t capacity = args.state.capacity;
  size_t bytes = 0;
  sum_leaving(nullptr, bytes, removal, nullptr);
  if (capacity > 0) {
    TORCHVOX_CUDA_CHECK(sum_leaving(static_cast<char*>(memory) + workspace.bytes(), bytes, removal,
                                    context.stream));
  }
  TORCHVOX_CUDA_CHECK(launch_elements<list_hole>(removal, args.state.table_size, context));
  TORCHVOX_CUDA_CHECK(launch_rows<vacate_region>(removal, capacity, context));
  return launch_elements<enter_region>(removal, capacity + 1, context);
}

}  // namespace torchvox
