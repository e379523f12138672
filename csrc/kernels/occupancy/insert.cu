// SPDX-License-Identifier: Apache-2.0
//
// occupancy_insert_ on the GPU: one thread per row finds its region, CUB sums, and one warp per row
// copies or merges it.
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "csrc/kernels/occupancy/insert.h"

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

}  // namespace

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

}  // namespace torchvox
