// SPDX-License-Identifier: Apache-2.0
//
// occupancy_decay_, occupancy_insert_ and occupancy_remove_ on the GPU: the steps of edit.h, each
// with one thread or one warp per item, and the prefix sums of CUB between them.
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "csrc/kernels/occupancy/edit.h"

namespace torchvox {
namespace {

cudaError_t scan_keys(void* storage, size_t& bytes, const Insertion& work, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveScan(storage, bytes, work.given.region_key, work.highest,
                                        HigherKey{}, work.given.capacity, stream);
}
template <class T>
cudaError_t sum(void* storage, size_t& bytes, T* numbers, int64_t rows, cudaStream_t stream) {
  return cub::DeviceScan::InclusiveSum(storage, bytes, numbers, numbers, rows, stream);
}
size_t storage_bytes(const Insertion& work) {
  size_t keys = 0, numbers = 0, sampled = 0;
  scan_keys(nullptr, keys, work, nullptr);
  sum(nullptr, numbers, work.number, work.given.capacity, nullptr);
  sum(nullptr, sampled, work.sampled, work.given.capacity, nullptr);
  return std::max({keys, numbers, sampled});
}
size_t storage_bytes(const Removal& work) {
  size_t regions = 0, samples = 0;
  sum(nullptr, regions, work.regions.leaving, work.regions.rows, nullptr);
  sum(nullptr, samples, work.samples.leaving, work.samples.rows, nullptr);
  return std::max(regions, samples);
}

}  // namespace

cudaError_t launch(const DecayArgs& args, void*, const CudaContext& context) {
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(args.counts, 0, kStateCounts * sizeof(int64_t), context.stream));
  return launch_rows<decay_region>(args, args.state.capacity + 1, context);
}

int64_t workspace_bytes_cuda(const InsertArgs& args, const Target&) {
  Workspace workspace;
  const Insertion work(args, workspace);
  return workspace.bytes() + static_cast<int64_t>(storage_bytes(work));
}

cudaError_t launch(const InsertArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const Insertion work(args, workspace);
  void* const storage = static_cast<char*>(memory) + workspace.bytes();
  const int64_t rows = args.given.capacity;
  size_t bytes = storage_bytes(work);
  if (rows > 0) TORCHVOX_CUDA_CHECK(scan_keys(storage, bytes, work, context.stream));
  TORCHVOX_CUDA_CHECK(launch_elements<find_region>(work, rows + 1, context));
  if (rows > 0) TORCHVOX_CUDA_CHECK(sum(storage, bytes, work.number, rows, context.stream));
  if (work.sampled && rows > 0) {
    TORCHVOX_CUDA_CHECK(sum(storage, bytes, work.sampled, rows, context.stream));
  }
  return launch_rows<insert_region>(work, rows + 1, context);
}

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
    TORCHVOX_CUDA_CHECK(sum(storage, bytes, layer.leaving, layer.rows, context.stream));
  }
  TORCHVOX_CUDA_CHECK(launch_elements<list_hole>(work, capacity + 1 + rows, context));
  TORCHVOX_CUDA_CHECK(launch_rows<vacate_region>(work, capacity + rows, context));
  return launch_elements<enter_region>(work, capacity + 1, context);
}

}  // namespace torchvox
