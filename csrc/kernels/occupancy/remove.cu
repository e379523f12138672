// SPDX-License-Identifier: Apache-2.0
//
// occupancy_remove_ on the GPU: CUB sums the regions to remove, one thread per slot writes the
// list of holes, one warp per row moves it, one thread per region enters it into the table.
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "csrc/kernels/occupancy/remove.h"

namespace torchvox {
namespace {

cudaError_t sum_leaving(void* storage, size_t& bytes, const Compaction& rows, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(storage, bytes, rows.leaving, rows.leaving, rows.rows,
                                       stream);
}
size_t storage_bytes(const Removal& work) {
  size_t regions = 0, samples = 0;
  sum_leaving(nullptr, regions, work.regions, nullptr);
  sum_leaving(nullptr, samples, work.samples, nullptr);
  return std::max(regions, samples);
}

}  // namespace

int64_t workspace_bytes_cuda(const RemoveArgs& args, const Target&) {
  Workspace workspace;
  const Removal work(args, workspace);
  return workspace.bytes() + static_cast<int64_t>(storage_bytes(work));
}

cudaError_t launch(const RemoveArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const Removal work(args, workspace);
  void* const storage = static_cast<char*>(memory) + workspace.bytes();
  const int64_t capacity = args.state.capacity, rows = args.state.samples.rows;
  size_t bytes = storage_bytes(work);
  if (rows > 0) {
    char* const first = reinterpret_cast<char*>(work.samples.leaving);
    const char* const end = reinterpret_cast<char*>(work.samples.holes + rows);
    TORCHVOX_CUDA_CHECK(
        cudaMemsetAsync(first, 0, static_cast<size_t>(end - first), context.stream));
  }
  TORCHVOX_CUDA_CHECK(launch_elements<mark_leaving>(work, args.state.table_size, context));
  for (const Compaction& layer : {work.regions, work.samples}) {
    if (layer.rows == 0) continue;
    TORCHVOX_CUDA_CHECK(sum_leaving(storage, bytes, layer, context.stream));
  }
  TORCHVOX_CUDA_CHECK(launch_elements<list_hole>(work, capacity + 1 + rows, context));
  TORCHVOX_CUDA_CHECK(launch_rows<vacate_region>(work, capacity + rows, context));
  return launch_elements<enter_region>(work, capacity + 1, context);
}

}  // namespace torchvox
