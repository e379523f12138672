// SPDX-License-Identifier: Apache-2.0
//
// The two steps with one thread a point: into the table, and into its voxel's segment.
#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/voxel/voxel_scan.cuh"

namespace torchvox {
namespace {

// Finds the samples of a block's rows: the samples of its first and last row bound the search, so
// in the usual block, which lies inside one sample, nothing is left to search.
struct BlockSamples {
  int64_t first;
  int64_t last;

  // Every thread of the block calls; ends with a barrier.
  __device__ static void find(const PackedPoints& points, BlockSamples& shared) {
    const int64_t begin = int64_t{blockIdx.x} * blockDim.x;
    if (threadIdx.x == 0) {
      shared.first = points.sample_of(begin);
      if (shared.first < 0) shared.first = 0;  // padding before the first sample
      if (!points.offsets.given()) shared.first = 0;
    }
    if (threadIdx.x == 32) {
      const int64_t end = begin + blockDim.x < points.rows ? begin + blockDim.x : points.rows;
      shared.last = end > begin ? points.sample_of(end - 1) : 0;
      if (shared.last < 0) shared.last = points.batches - 1;  // padding after the last sample
    }
    __syncthreads();
  }
  // The sample whose block holds `row`, or -1.
  __device__ int64_t of(const PackedPoints& points, int64_t row) const {
    if (!points.offsets.given()) return 0;
    if (points.batches == 0 || row < points.offset(0) || row >= points.offset(points.batches)) {
      return -1;
    }
    if (first > last || points.offset(first) > row || points.offset(last + 1) <= row) {
      return points.sample_of(row);
    }
    int64_t low = first, high = last + 1;  // offset(low) <= row < offset(high)
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (points.offset(middle) <= row) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }
  __device__ bool single() const { return first == last; }
};

// Adds one to column `column` (-1: none) of the tallies of each thread's sample. A block inside one
// sample adds up first.
__device__ void tally(const VoxelWork& work, const BlockSamples& samples, int64_t sample,
                      int column, uint32_t (&shared)[5]) {
  if (threadIdx.x < 5) shared[threadIdx.x] = 0;
  __syncthreads();
  if (samples.single()) {
    for (int c = 0; c < 5; ++c) {
      const unsigned votes = __ballot_sync(0xffffffffu, column == c);
      if (threadIdx.x % 32 == 0 && votes)
        atomicAdd(&shared[c], static_cast<uint32_t>(__popc(votes)));
    }
  } else if (column >= 0) {
    atomicAdd(&work.tallies[5 * sample + column], 1u);
  }
  __syncthreads();
  if (threadIdx.x < 5 && shared[threadIdx.x]) {
    atomicAdd(&work.tallies[5 * samples.first + threadIdx.x], shared[threadIdx.x]);
  }
}

// One thread a point: reads x, y, z, finds the cell and adds the point to the table. Lanes of a
// warp with one key send their lowest lane; a lane's number among them completes the arrival.
// Writes 8 bytes a point and touches one 32-byte sector of the table for each voxel of the warp.
template <class Real>
__global__ void __launch_bounds__(kVoxelThreads) insert_kernel(VoxelizeArgs args, VoxelWork work) {
  __shared__ BlockSamples samples;
  __shared__ uint32_t shared[5];
  const PackedPoints& points = args.points;
  const int64_t row = global_thread();
  BlockSamples::find(points, samples);

  uint64_t key = kNone64;
  int column = -1;
  int64_t sample = -1;
  if (row < points.rows) {
    sample = samples.of(points, row);
    if (sample >= 0 && !points.is_valid(row, sample)) sample = -1;
  }
  if (sample >= 0) {
    const int64_t at = row * points.row_stride;
    const Real x = load_as<Real>(points.data, points.dtype, at);
    const Real y = load_as<Real>(points.data, points.dtype, at + 1);
    const Real z = load_as<Real>(points.data, points.dtype, at + 2);
    Cell cell;
    const PointPlace place = args.grid.locate(x, y, z, &cell);
    if (place == PointPlace::kInside) {
      key = args.grid.key(sample, cell);
    } else {
      column = place == PointPlace::kOutside ? kPointsOutOfRange - 2 : kPointsNotFinite - 2;
    }
  }

  const int lane = threadIdx.x % 32;
  const unsigned peers = __match_any_sync(0xffffffffu, static_cast<unsigned long long>(key));
  const int leader = __ffs(static_cast<int>(peers)) - 1;
  uint32_t slot = kNone32, before = 0;
  if (key != kNone64 && lane == leader) {
    slot = work.table.insert(key, static_cast<uint32_t>(row), static_cast<uint32_t>(__popc(peers)),
                             &before);
  }
  slot = __shfl_sync(0xffffffffu, slot, leader);
  before = __shfl_sync(0xffffffffu, before, leader);
  if (row < points.rows) {
    work.slot[row] = slot;
    if (slot != kNone32) {
      work.arrival[row] = before + static_cast<uint32_t>(__popc(peers & ((1u << lane) - 1)));
    }
  }
  tally(work, samples, sample, column, shared);
}

// The rows of `counts`, by one block; thread t adds up column t % 8.
__device__ void write_counts(const VoxelizeArgs& args, const VoxelWork& work) {
  __shared__ int32_t sums[kVoxelThreads];
  const int column = threadIdx.x % kVoxelCounts;
  int32_t sum = 0;
  for (int64_t b = threadIdx.x / kVoxelCounts; b < args.points.batches;
       b += kVoxelThreads / kVoxelCounts) {
    int32_t value = 0;
    if (column == kVoxelsKept) {
      value = static_cast<int32_t>(work.row_begin[b + 1] - work.row_begin[b]);
    } else if (column == kVoxelsFound) {
      value = static_cast<int32_t>(work.sample_begin[b + 1] - work.sample_begin[b]);
    } else if (column < kVoxelCountUnused) {
      value = static_cast<int32_t>(load_relaxed(&work.tallies[5 * b + column - 2]) + 1);
    }
    args.counts[(b + 1) * kVoxelCounts + column] = value;
    sum += value;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x < kVoxelCounts) {
    for (int t = threadIdx.x + kVoxelCounts; t < kVoxelThreads; t += kVoxelCounts) sum += sums[t];
    args.counts[column] = sum;
  }
}

// One thread a point: from its slot to its voxel's id and segment, and from there to its row. One
// random read of 8 bytes and one random write of 4. How many points of a voxel are stored does not
// depend on which ones they are, so the counts are complete here.
__global__ void __launch_bounds__(kVoxelThreads) place_kernel(VoxelizeArgs args, VoxelWork work) {
  __shared__ BlockSamples samples;
  __shared__ uint32_t shared[5];
  const PackedPoints& points = args.points;
  const int64_t i = global_thread();
  BlockSamples::find(points, samples);
  int column = -1;
  int64_t sample = 0;
  if (i < points.rows) {
    int64_t row = -1;
    const uint32_t slot = work.slot[i];
    if (slot != kNone32) {
      uint64_t key;
      const VoxelTable::Entry entry = work.table.entry(slot, &key);
      const uint32_t arrival = work.arrival[i];
      sample = samples.of(points, i);
      work.perm[int64_t{entry.count} + arrival] = static_cast<uint32_t>(i);
      row = work.row_of(args, work.rank(entry.first), sample);
      const bool stored = args.max_points < 0 || arrival < args.max_points;
      column = (row < 0 ? kPointsVoxelNotKept : stored ? kPointsStored : kPointsOverCap) - 2;
    }
    args.point_voxel[i] = static_cast<int32_t>(row);
    if (args.point_slot != nullptr && row < 0) args.point_slot[i] = -1;
  }
  tally(work, samples, sample, column, shared);
  if (is_last_block(&work.counters->place_done, gridDim.x)) write_counts(args, work);
}

unsigned point_blocks(const VoxelizeArgs& args) {
  return static_cast<unsigned>(ceil_div<int64_t>(args.points.rows, kVoxelThreads));
}

}  // namespace

cudaError_t insert_points(const VoxelizeArgs& args, const VoxelWork& work,
                          const CudaContext& context) {
  if (args.points.rows == 0) return cudaSuccess;
  if (args.points.dtype == DType::kDouble) {
    insert_kernel<double><<<point_blocks(args), kVoxelThreads, 0, context.stream>>>(args, work);
  } else {
    insert_kernel<float><<<point_blocks(args), kVoxelThreads, 0, context.stream>>>(args, work);
  }
  return cudaGetLastError();
}

cudaError_t place_points(const VoxelizeArgs& args, const VoxelWork& work,
                         const CudaContext& context) {
  const unsigned blocks = args.points.rows == 0 ? 1 : point_blocks(args);
  place_kernel<<<blocks, kVoxelThreads, 0, context.stream>>>(args, work);
  return cudaGetLastError();
}

}  // namespace torchvox
