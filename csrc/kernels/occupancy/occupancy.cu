// SPDX-License-Identifier: Apache-2.0
//
// The operators that edit a map, and occupancy_extract, on the GPU: the steps of edit.h, each with
// one thread or one warp per item, and the prefix sums of CUB between them. occupancy_extract sorts
// the slots by key with CUB, unused slots last.
#include <cub/block/block_scan.cuh>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/occupancy/edit.h"
#include "csrc/kernels/occupancy/read.h"

namespace torchvox {
namespace {

constexpr int kThreads = kRegionVoxels;  // one per voxel

struct ExtractWork {
  int64_t *keys, *sorted_keys;
  int32_t *slots, *sorted_slots;
  int64_t* offsets;  // [capacity + 1]
  void* storage;
  size_t storage_bytes = 0;

  ExtractWork(const OccupancyExtractArgs& args, Workspace& workspace) {
    const int64_t n = args.state.capacity;
    for (int64_t** array : {&keys, &sorted_keys}) *array = workspace.take<int64_t>(n);
    for (int32_t** array : {&slots, &sorted_slots}) *array = workspace.take<int32_t>(n);
    offsets = workspace.take<int64_t>(n + 1);
    size_t sort_bytes = 0, sum_bytes = 0;
    sort(nullptr, sort_bytes, n, nullptr);
    sum(nullptr, sum_bytes, n, nullptr);
    storage_bytes = std::max(sort_bytes, sum_bytes);
    storage = workspace.take<char>(static_cast<int64_t>(storage_bytes));
  }
  cudaError_t sort(void* memory, size_t& bytes, int64_t n, cudaStream_t stream) const {
    return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted_keys, slots, sorted_slots, n,
                                           0, 64, stream);
  }
  cudaError_t sum(void* memory, size_t& bytes, int64_t n, cudaStream_t stream) const {
    return cub::DeviceScan::ExclusiveSum(memory, bytes, offsets, offsets, n + 1, stream);
  }
};

// One thread per slot: writes its key, or the largest key if it is not in use, and the slot.
__global__ void __launch_bounds__(256) key_kernel(const __grid_constant__ OccupancyExtractArgs args,
                                                  const __grid_constant__ ExtractWork work) {
  const int64_t in_use = args.state.slots_in_use();
  for (int64_t i = global_thread(); i < args.state.capacity; i += global_stride()) {
    work.keys[i] = i < in_use ? args.state.region_key[i] : kRegionKeyEnd;
    work.slots[i] = static_cast<int32_t>(i);
  }
}

// One block per region in the order of the keys, one thread per voxel: reads its log-odds; the
// block writes how many are selected.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ OccupancyExtractArgs args,
                 const __grid_constant__ ExtractWork work) {
  const int64_t in_use = args.state.slots_in_use();
  for (int64_t r = blockIdx.x; r <= args.state.capacity; r += gridDim.x) {
    bool selected = false;
    if (r < in_use) {
      const int64_t slot = work.sorted_slots[r];
      selected = args.selects(args.state.logodds[slot * kRegionVoxels + threadIdx.x]);
    }
    const int n = __syncthreads_count(selected);
    if (threadIdx.x == 0) work.offsets[r] = n;
  }
}

// One block per region, one thread per voxel: reads its log-odds and, if it is selected, writes its
// row; then all threads write the unused rows and the counts.
__global__ void __launch_bounds__(kThreads)
    write_kernel(const __grid_constant__ OccupancyExtractArgs args,
                 const __grid_constant__ ExtractWork work) {
  using Scan = cub::BlockScan<int, kThreads>;
  __shared__ typename Scan::TempStorage shared;
  const int64_t in_use = args.state.slots_in_use();
  for (int64_t r = blockIdx.x; r < in_use; r += gridDim.x) {
    if (work.offsets[r] == work.offsets[r + 1]) continue;
    const int64_t slot = work.sorted_slots[r];
    const int16_t logodds = args.state.logodds[slot * kRegionVoxels + threadIdx.x];
    int before;
    Scan(shared).ExclusiveSum(args.selects(logodds), before);
    const int64_t row = work.offsets[r] + before;
    if (args.selects(logodds) && row < args.max_out) {
      args.write(row, slot, static_cast<int32_t>(threadIdx.x), logodds);
    }
    __syncthreads();
  }
  const int64_t selected = work.offsets[args.state.capacity];
  const int64_t kept = selected < args.max_out ? selected : args.max_out;
  for (int64_t row = kept + global_thread(); row < args.max_out; row += global_stride()) {
    args.write_unused(row);
  }
  if (global_thread() < kStateCounts) {
    const int64_t counts[2] = {kept, selected};
    args.counts[threadIdx.x] = threadIdx.x < 2 ? counts[threadIdx.x] : 0;
  }
}

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

int64_t workspace_bytes_cuda(const OccupancyExtractArgs& args, const Target&) {
  return carved_bytes<ExtractWork>(args);
}

cudaError_t launch(const OccupancyExtractArgs& args, void* memory, const CudaContext& context) {
  auto work = carve<ExtractWork>(memory, args);
  const int64_t n = args.state.capacity;
  const unsigned blocks = blocks_for(n + 1, 1, context.target);
  TORCHVOX_CUDA_CHECK(launch_items(key_kernel, n, 256, context, args, work));
  if (n > 0) {
    TORCHVOX_CUDA_CHECK(work.sort(work.storage, work.storage_bytes, n, context.stream));
  }
  TORCHVOX_CUDA_CHECK(launch_blocks(count_kernel, blocks, kThreads, context.stream, args, work));
  TORCHVOX_CUDA_CHECK(work.sum(work.storage, work.storage_bytes, n, context.stream));
  return launch_blocks(write_kernel, blocks, kThreads, context.stream, args, work);
}

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
