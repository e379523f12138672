// SPDX-License-Identifier: Apache-2.0
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "csrc/kernels/occupancy/insert.h"

namespace torchvox {
namespace {

struct Highest {
  __host__ __device__ int64_t operator()(int64_t a, int64_t b) const { return a < b ? b : a; }
};
struct Numbered {
  Insertion insertion;
  __host__ __device__ uint64_t operator()(int64_t row) const { return insertion.numbered(row); }
};

cudaError_t scan_keys(void* storage, size_t& bytes, const Insertion& insertion,
                      cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveScan(storage, bytes, insertion.given.region_key,
                                        insertion.highest, Highest{}, int64_t{-1},
                                        insertion.given.capacity, stream);
}
cudaError_t sum_numbers(void* storage, size_t& bytes, const Insertion& insertion,
                        cudaStream_t stream) {
  const auto numbered = thrust::make_transform_iterator(thrust::make_counting_iterator(int64_t{0}),
                                                        Numbered{insertion});
  return cub::DeviceScan::InclusiveSum(storage, bytes, numbered, insertion.number,
                                       insertion.given.capacity, stream);
}

// Of CUB, for one or the other.
size_t storage_bytes(const Insertion& insertion) {
  size_t keys = 0, numbers = 0;
  scan_keys(nullptr, keys, insertion, nullptr);
  sum_numbers(nullptr, numbers, insertion, nullptr);
  return std::max(keys, numbers);
}

}  // namespace

int64_t workspace_bytes_cuda(const InsertArgs& args, const Target&) {
  Workspace workspace;
  const Insertion insertion(args, workspace);
  return workspace.bytes() + static_cast<int64_t>(storage_bytes(insertion));
}

cudaError_t launch(const InsertArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const Insertion insertion(args, workspace);
  void* const storage = static_cast<char*>(memory) + workspace.bytes();
  const int64_t rows = args.given.capacity;
  size_t bytes = storage_bytes(insertion);
  if (rows > 0) TORCHVOX_CUDA_CHECK(scan_keys(storage, bytes, insertion, context.stream));
  TORCHVOX_CUDA_CHECK(launch_elements<find_region>(insertion, rows + 1, context));
  if (rows > 0) TORCHVOX_CUDA_CHECK(sum_numbers(storage, bytes, insertion, context.stream));
  return launch_rows<insert_region>(insertion, rows + 1, context);
}

}  // namespace torchvox
