// SPDX-License-Identifier: Apache-2.0
//
// voxel_group on the GPU. The automatic choice is the hash backend for rows in order of their first
// points, the sort backend for rows in order of their keys.
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>

#include <algorithm>

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/filter/voxel_group.h"

namespace torchvox {
namespace {

constexpr int kThreads = 256;

bool hashes(const VoxelGroupArgs& args) {
  if (args.backend == GroupBackend::kAuto) return !args.by_key;
  return args.backend == GroupBackend::kHash;
}

// ---- hash ---------------------------------------------------------------------------------------

// One thread per point: reads its row and slot, writes it into perm; the first thread writes the
// counts.
__global__ void __launch_bounds__(kThreads)
    place_kernel(const __grid_constant__ VoxelGroupArgs args,
                 const __grid_constant__ VoxelizeArgs voxelize) {
  const int32_t points = args.offsets[args.points];
  for (int64_t i = global_thread(); i < args.points; i += global_stride()) {
    place_in_row(args, voxelize, i);
    if (i >= points) args.perm[i] = -1;
  }
  if (global_thread() == 0) {
    args.counts[0] = voxelize.counts[kVoxelsKept];
    args.counts[1] = points;
  }
}

// The sizes of the rows, then 0 for the last offset.
struct RowSize {
  const int32_t* num_points;
  int64_t rows;
  __host__ __device__ int32_t operator()(int64_t row) const {
    return row < rows ? num_points[row] : 0;
  }
};
cudaError_t sum_sizes(void* storage, size_t& bytes, const VoxelGroupArgs& args,
                      const HashGroup& group, cudaStream_t stream) {
  const auto sizes = thrust::make_transform_iterator(
      thrust::make_counting_iterator(int64_t{0}), RowSize{group.voxelize.num_points, args.points});
  return cub::DeviceScan::ExclusiveSum(storage, bytes, sizes, args.offsets, args.points + 1,
                                       stream);
}

int64_t hash_bytes(const VoxelGroupArgs& args, const Target& target) {
  Workspace workspace;
  const HashGroup group(args, workspace);
  size_t bytes = 0;
  sum_sizes(nullptr, bytes, args, group, nullptr);
  // The sum comes after voxelize, and takes its place.
  return workspace.bytes() +
      std::max(workspace_bytes_cuda(group.voxelize, target), static_cast<int64_t>(bytes));
}

cudaError_t launch_hash(const VoxelGroupArgs& args, void* memory, const CudaContext& context) {
  Workspace workspace(memory);
  const HashGroup group(args, workspace);
  void* const rest = static_cast<char*>(memory) + workspace.bytes();
  TORCHVOX_CUDA_CHECK(launch(group.voxelize, rest, context));
  size_t bytes = 0;
  sum_sizes(nullptr, bytes, args, group, nullptr);
  TORCHVOX_CUDA_CHECK(sum_sizes(rest, bytes, args, group, context.stream));
  return launch_blocks(place_kernel, blocks_for(args.points, kThreads, context.target), kThreads,
                       context.stream, args, group.voxelize);
}

// ---- sort ---------------------------------------------------------------------------------------

// Points in the order of their keys, dropped ones last; `run` counts runs of equal keys from 0.
struct SortGroup {
  uint64_t* keys[2];
  uint32_t* points[2];
  int32_t* run;  // [points]: run of a place
  int32_t* begin;  // [points + 1]: where a run begins, and where the last one ends
  uint64_t* first;  // [points]: 1 << 32 | length for a point that begins a run, else 0; then prefix
                    // sums of these: runs before in the high half, points before in the low half
  void* storage;  // temporary storage of CUB
  size_t storage_bytes = 0;
  int current = 0;

  SortGroup(const VoxelGroupArgs& args, Workspace& workspace);

  __device__ const uint64_t* sorted() const { return keys[current]; }
};

// 1 where a run of a valid key begins.
struct BeginsRun {
  const uint64_t* keys;
  int key_bits;
  __host__ __device__ int32_t operator()(int64_t i) const {
    return keys[i] >> key_bits == 0 && (i == 0 || keys[i] != keys[i - 1]);
  }
};

cudaError_t sort_keys(const VoxelGroupArgs& args, SortGroup& work, size_t& bytes, void* storage,
                      cudaStream_t stream) {
  cub::DoubleBuffer<uint64_t> keys(work.keys[0], work.keys[1]);
  cub::DoubleBuffer<uint32_t> points(work.points[0], work.points[1]);
  const cudaError_t status = cub::DeviceRadixSort::SortPairs(
      storage, bytes, keys, points, args.points, 0, args.key_bits + 1, stream);
  work.current = keys.Current() == work.keys[0] ? 0 : 1;
  return status;
}
cudaError_t sum_begins(const VoxelGroupArgs& args, const SortGroup& work, size_t& bytes,
                       void* storage, cudaStream_t stream) {
  const auto begins =
      thrust::make_transform_iterator(thrust::make_counting_iterator(int64_t{0}),
                                      BeginsRun{work.keys[work.current], args.key_bits});
  return cub::DeviceScan::InclusiveSum(storage, bytes, begins, work.run, args.points, stream);
}
cudaError_t sum_first(const VoxelGroupArgs& args, const SortGroup& work, size_t& bytes,
                      void* storage, cudaStream_t stream) {
  return cub::DeviceScan::ExclusiveSum(storage, bytes, work.first, work.first, args.points, stream);
}

SortGroup::SortGroup(const VoxelGroupArgs& args, Workspace& workspace) {
  for (int k = 0; k < 2; ++k) keys[k] = workspace.take<uint64_t>(args.points);
  for (int k = 0; k < 2; ++k) points[k] = workspace.take<uint32_t>(args.points);
  run = workspace.take<int32_t>(args.points);
  begin = workspace.take<int32_t>(args.points + 1);
  first = workspace.take<uint64_t>(args.by_key ? 0 : args.points);
  size_t bytes[3] = {};
  if (args.points > 0) {
    sort_keys(args, *this, bytes[0], nullptr, nullptr);
    sum_begins(args, *this, bytes[1], nullptr, nullptr);
    sum_first(args, *this, bytes[2], nullptr, nullptr);
  }
  current = 0;
  storage_bytes = std::max({bytes[0], bytes[1], bytes[2]});
  storage = workspace.take<char>(static_cast<int64_t>(storage_bytes));
}

// One thread per point: reads its key, writes (key, point) for the sort; keys that are dropped sort
// last.
__global__ void __launch_bounds__(kThreads) key_kernel(const __grid_constant__ VoxelGroupArgs args,
                                                       const __grid_constant__ SortGroup work) {
  for (int64_t i = global_thread(); i < args.points; i += global_stride()) {
    const uint64_t key = static_cast<uint64_t>(args.keys[i]);
    work.keys[0][i] = args.is_key(key) ? key : uint64_t{1} << args.key_bits;
    work.points[0][i] = static_cast<uint32_t>(i);
    if (!args.by_key) work.first[i] = 0;
  }
}

// One thread per sorted place: writes where runs begin, and the numbers of rows and of points with
// a key.
__global__ void __launch_bounds__(kThreads)
    begin_kernel(const __grid_constant__ VoxelGroupArgs args,
                 const __grid_constant__ SortGroup work) {
  const BeginsRun begins{work.sorted(), args.key_bits};
  for (int64_t i = global_thread(); i < args.points; i += global_stride()) {
    const bool has_key = args.is_key(work.sorted()[i]);
    if (begins(i)) work.begin[work.run[i] - 1] = static_cast<int32_t>(i);
    if (i + 1 < args.points && args.is_key(work.sorted()[i + 1])) continue;
    if (i > 0 && !has_key) continue;
    // The last place with a key, or the first one of all.
    const int32_t rows = has_key ? work.run[i] : 0,
                  points = has_key ? static_cast<int32_t>(i) + 1 : 0;
    work.begin[rows] = points;
    args.counts[0] = rows;
    args.counts[1] = points;
  }
}

// One thread per run: writes its length at its first point, for rows in order of first points.
__global__ void __launch_bounds__(kThreads)
    first_kernel(const __grid_constant__ VoxelGroupArgs args,
                 const __grid_constant__ SortGroup work) {
  const int32_t rows = args.counts[0];
  for (int64_t r = global_thread(); r < rows; r += global_stride()) {
    const int32_t begin = work.begin[r];
    work.first[work.points[work.current][begin]] =
        uint64_t{1} << 32 | static_cast<uint32_t>(work.begin[r + 1] - begin);
  }
}

// One thread per sorted place: reads its point, run and the prefix sums, writes the rows, offsets,
// perm and the row of the point, and the unused ends of each.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const __grid_constant__ VoxelGroupArgs args,
                  const __grid_constant__ SortGroup work) {
  const int32_t rows = args.counts[0], points = args.counts[1];
  const uint32_t* const sorted_points = work.points[work.current];
  for (int64_t i = global_thread(); i <= args.points; i += global_stride()) {
    if (i >= rows) args.offsets[i] = points;
    if (i == args.points) break;
    if (i >= rows) args.row_keys[i] = -1;
    const uint32_t point = sorted_points[i];
    if (i >= points) {
      args.perm[i] = -1;
      args.point_voxel[point] = -1;
      continue;
    }
    int32_t row = work.run[i] - 1;
    const int32_t begin = work.begin[row];
    int32_t place = begin;
    if (!args.by_key) {
      const uint64_t before = work.first[sorted_points[begin]];
      row = static_cast<int32_t>(before >> 32);
      place = static_cast<int32_t>(before);
    }
    if (i == begin) {
      args.row_keys[row] = static_cast<int64_t>(work.sorted()[i]);
      args.offsets[row] = place;
    }
    args.perm[place + (i - begin)] = static_cast<int32_t>(point);
    args.point_voxel[point] = row;
  }
}

cudaError_t launch_sort(const VoxelGroupArgs& args, void* memory, const CudaContext& context) {
  auto work = carve<SortGroup>(memory, args);
  const cudaStream_t stream = context.stream;
  if (args.points > 0) {
    TORCHVOX_CUDA_CHECK(launch_items(key_kernel, args.points, kThreads, context, args, work));
    TORCHVOX_CUDA_CHECK(sort_keys(args, work, work.storage_bytes, work.storage, stream));
    TORCHVOX_CUDA_CHECK(sum_begins(args, work, work.storage_bytes, work.storage, stream));
    TORCHVOX_CUDA_CHECK(launch_items(begin_kernel, args.points, kThreads, context, args, work));
    if (!args.by_key) {
      TORCHVOX_CUDA_CHECK(launch_items(first_kernel, args.points, kThreads, context, args, work));
      TORCHVOX_CUDA_CHECK(sum_first(args, work, work.storage_bytes, work.storage, stream));
    }
  } else {
    TORCHVOX_CUDA_CHECK(cudaMemsetAsync(args.counts, 0, 2 * sizeof(int32_t), stream));
  }
  return launch_items(finish_kernel, args.points + 1, kThreads, context, args, work);
}

}  // namespace

int64_t workspace_bytes_cuda(const VoxelGroupArgs& args, const Target& target) {
  return hashes(args) ? hash_bytes(args, target) : carved_bytes<SortGroup>(args);
}

cudaError_t launch(const VoxelGroupArgs& args, void* memory, const CudaContext& context) {
  return hashes(args) ? launch_hash(args, memory, context) : launch_sort(args, memory, context);
}

}  // namespace torchvox
