// SPDX-License-Identifier: Apache-2.0
//
// ray_regions on the GPU: one thread per ray enters its regions into a set, CUB sorts the set,
// empty places last.
#include <cub/device/device_radix_sort.cuh>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/rays/regions.h"

namespace torchvox {
namespace {

constexpr int kThreads = 128;

// One thread per ray: reads it, enters the regions that it visits into the set, and counts it if it
// is skipped.
__global__ void __launch_bounds__(kThreads)
    enter_kernel(const __grid_constant__ RayRegionsArgs args, const RegionSet set) {
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < args.rays.points.rows;
       first += global_stride()) {
    const int64_t i = first + threadIdx.x;
    Ray ray;
    const RayStatus status = i < args.rays.points.rows ? args.rays.ray(i, &ray) : kRayPadding;
    if (status == kRayWalked) {
      for_each_region(ray, args.rays.part(ray), [&](int64_t key) { set.insert(key); });
    }
    count_skipped(status, args.counts);
  }
}

// One thread per row: reads the sorted key, writes it or -1; the first thread writes the counts.
__global__ void __launch_bounds__(kThreads)
    write_kernel(const __grid_constant__ RayRegionsArgs args, const RegionSet set,
                 const uint64_t* sorted) {
  int64_t regions =
      first_where(int64_t{0}, set.size, [&](int64_t i) { return sorted[i] == RegionSet::kEmpty; });
  const int64_t kept = regions_kept(args, set, &regions);
  for (int64_t i = global_thread(); i < args.max_out; i += global_stride()) {
    args.keys[i] = i < kept ? static_cast<int64_t>(sorted[i]) : -1;
  }
  if (global_thread() == 0) {
    args.counts[0] = kept;
    args.counts[1] = regions;
  }
}

struct RegionWork {
  RegionSet set;
  uint64_t* sorted;
  void* storage;
  size_t storage_bytes = 0;

  RegionWork(const RayRegionsArgs& args, Workspace& workspace) {
    set.size = RegionSet::size_for(args.max_out);
    set.keys = workspace.take<uint64_t>(set.size);
    set.full = workspace.take<uint32_t>(1);
    sorted = workspace.take<uint64_t>(set.size);
    sort(nullptr, nullptr);
    storage = workspace.take<char>(static_cast<int64_t>(storage_bytes));
  }
  cudaError_t sort(void* memory, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortKeys(memory, storage_bytes, set.keys, sorted, set.size, 0, 64,
                                          stream);
  }
};

}  // namespace

int64_t workspace_bytes_cuda(const RayRegionsArgs& args, const Target&) {
  return carved_bytes<RegionWork>(args);
}

cudaError_t launch(const RayRegionsArgs& args, void* memory, const CudaContext& context) {
  auto work = carve<RegionWork>(memory, args);
  const cudaStream_t stream = context.stream;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.set.keys, 0xff, work.set.size * 8, stream));
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(work.set.full, 0, 4, stream));
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, kRayCounts * 8, stream));
  TORCHVOX_CUDA_CHECK(
      launch_items(enter_kernel, args.rays.points.rows, kThreads, context, args, work.set));
  TORCHVOX_CUDA_CHECK(work.sort(work.storage, stream));
  return launch_items(write_kernel, args.max_out + 1, kThreads, context, args, work.set,
                      work.sorted);
}

}  // namespace torchvox
