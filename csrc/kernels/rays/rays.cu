// SPDX-License-Identifier: Apache-2.0
//
// The operators on rays on the GPU, all with one thread per ray. ray_visibility reads bytes before
// it writes them, so that most visits of a busy voxel need only a cached read.
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/rays/rays.h"

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
    sorted_kernel(const __grid_constant__ RayRegionsArgs args, const RegionSet set,
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

  RegionWork(const RayRegionsArgs& args, Workspace& workspace)
      : set(args.max_out, workspace), sorted(workspace.take<uint64_t>(set.size)) {
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
  return launch_items(sorted_kernel, args.max_out + 1, kThreads, context, args, work.set,
                      work.sorted);
}

namespace {

// Warps add up the counts of a sample, blocks those of the call.
__device__ void count_rays(const RayVisibilityArgs& args, int64_t sample, VisibilityCount column) {
  for (int c = 0; c < kVisibilityCounts; ++c) {
    const bool counts = sample >= 0 &&
        (c == column || c == kVisibilityGiven || (c == kVisibilityWalked && is_walked(column)));
    const int n = __syncthreads_count(counts);
    if (threadIdx.x == 0 && n > 0) atomicAdd(&args.counts[c], n);
    const unsigned same = __match_any_sync(kFullWarp, counts ? sample : int64_t{-1});
    if (counts && static_cast<int>(threadIdx.x % 32) == __ffs(static_cast<int>(same)) - 1) {
      atomicAdd(&args.counts[(sample + 1) * kVisibilityCounts + c], __popc(same));
    }
  }
}

// One thread per ray: reads it, marks the voxels that it passes as free, writes its status and its
// end, and counts it.
template <class Real>
__global__ void __launch_bounds__(kThreads)
    see_kernel(const __grid_constant__ RayVisibilityArgs args) {
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first < args.points.rows;
       first += global_stride()) {
    const int64_t row = first + threadIdx.x;
    const int64_t sample = row < args.points.rows ? args.points.packed_owner(row) : -1;
    VisibilityCount column = kVisibilityCounts;
    if (row < args.points.rows) column = see<Real>(args, row, sample);
    count_rays(args, sample, column);
  }
}

}  // namespace

cudaError_t launch(const RayVisibilityArgs& given, void* memory, const CudaContext& context) {
  RayVisibilityArgs args = given;
  args.end = static_cast<int64_t*>(memory);
  const int64_t counts = (args.points.clouds + 1) * kVisibilityCounts;
  TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, counts * 4, context.stream));
  if (args.volume() > 0) {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.visibility, 0, args.volume(), context.stream));
  }
  TORCHVOX_CUDA_CHECK(with_compute_type(args.points.dtype, [&](auto real) {
    return launch_items(see_kernel<decltype(real)>, args.points.rows, kThreads, context, args);
  }));
  return launch_elements<mark_end>(args, args.points.rows, context);
}

namespace {

// One thread per ray: reads it, writes its number of visits, and counts it if it is skipped.
__global__ void __launch_bounds__(kThreads)
    count_kernel(const __grid_constant__ RayVoxelsArgs args) {
  const int64_t rays = args.rays.points.rows;
  for (int64_t first = int64_t{blockIdx.x} * kThreads; first <= rays; first += global_stride()) {
    const int64_t i = first + threadIdx.x;
    RayStatus status = kRayPadding;
    if (i < rays) args.offsets[i] = count_visits(args, i, &status);
    if (i == rays) args.offsets[i] = 0;
    count_skipped(status, args.counts);
  }
}

// One thread per ray: walks it again and writes its visits; all threads then write the unused rows,
// the first one the counts.
__global__ void __launch_bounds__(kThreads)
    visits_kernel(const __grid_constant__ RayVoxelsArgs args) {
  for (int64_t i = global_thread(); i < args.rays.points.rows; i += global_stride()) {
    write_visits(args, i);
  }
  const int64_t kept = args.kept();
  for (int64_t row = kept + global_thread(); row < args.max_out; row += global_stride()) {
    write_visit(args, row, -1, nullptr, 0, 0);
  }
  if (global_thread() == 0) {
    args.counts[0] = kept;
    args.counts[1] = args.offsets[args.rays.points.rows];
  }
}

cudaError_t sum_visits(const RayVoxelsArgs& args, void* storage, size_t& bytes,
                       cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(storage, bytes, args.offsets, args.offsets,
                                       args.rays.points.rows + 1, stream);
}

}  // namespace

int64_t workspace_bytes_cuda(const RayVoxelsArgs& args, const Target&) {
  size_t bytes = 0;
  sum_visits(args, nullptr, bytes, nullptr);
  return static_cast<int64_t>(bytes);
}

cudaError_t launch(const RayVoxelsArgs& args, void* workspace, const CudaContext& context) {
  const int64_t rays = args.rays.points.rows;
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(args.counts, 0, kRayCounts * sizeof(int64_t), context.stream));
  TORCHVOX_CUDA_CHECK(launch_items(count_kernel, rays + 1, kThreads, context, args));
  size_t bytes = static_cast<size_t>(workspace_bytes_cuda(args, context.target));
  TORCHVOX_CUDA_CHECK(sum_visits(args, workspace, bytes, context.stream));
  return launch_items(visits_kernel, std::max(rays, args.max_out) + 1, kThreads, context, args);
}

}  // namespace torchvox
