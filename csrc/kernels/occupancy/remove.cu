// SPDX-License-Identifier: Apache-2.0
//
// occupancy_remove_ on the GPU: CUB sums the regions that leave, a thread a slot names the holes, a
// warp a region moves it, a thread a region enters it into the table.
#include <cub/device/device_scan.cuh>

#include "csrc/kernels/occupancy/remove.h"

namespace torchvox {
namespace {

cudaError_t sum_leaving(void* storage, size_t& bytes, const Removal& work, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(storage, bytes, work.leaving, work.leaving,
                                       work.state.capacity, stream);
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
  const Removal work(args, workspace);
  void* const storage = static_cast<char*>(memory) + workspace.bytes();
  const int64_t capacity = args.state.capacity;
  size_t bytes = 0;
  sum_leaving(nullptr, bytes, work, nullptr);
  TORCHVOX_CUDA_CHECK(launch_elements<mark_leaving>(work, args.state.table_size, context));
  if (capacity > 0) TORCHVOX_CUDA_CHECK(sum_leaving(storage, bytes, work, context.stream));
  TORCHVOX_CUDA_CHECK(launch_elements<list_hole>(work, capacity + 1, context));
  TORCHVOX_CUDA_CHECK(launch_rows<vacate_region>(work, capacity, context));
  return launch_elements<enter_region>(work, capacity + 1, context);
}

}  // namespace torchvox
