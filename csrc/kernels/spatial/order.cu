// SPDX-License-Identifier: Apache-2.0
//
// Puts clouds in order along a Hilbert curve through a cube with one scale for all axes. The order
// only decides how small the boxes of tiles are: ties, rounding and lost bits cost speed, not
// exactness.
#include <cub/device/device_radix_sort.cuh>

#include "csrc/kernels/spatial/order.cuh"

namespace torchvox {

SortBuffers::SortBuffers(int64_t count, Workspace& workspace) {
  for (int buffer = 0; buffer < 2; ++buffer) {
    keys[buffer] = workspace.take<uint32_t>(count);
    values[buffer] = workspace.take<uint32_t>(count);
  }
  size_t bytes = 0;
  cub::DoubleBuffer<uint32_t> no_keys, no_values;
  if (count > 0) cub::DeviceRadixSort::SortPairs(nullptr, bytes, no_keys, no_values, count, 0, 32);
  temporary_bytes = static_cast<int64_t>(bytes);
  temporary = workspace.take<char>(temporary_bytes);
}

cudaError_t radix_sort(SortBuffers& buffers, int64_t count, int bits, cudaStream_t stream) {
  const int now = buffers.current;
  cub::DoubleBuffer<uint32_t> keys(buffers.keys[now], buffers.keys[1 - now]);
  cub::DoubleBuffer<uint32_t> values(buffers.values[now], buffers.values[1 - now]);
  size_t bytes = static_cast<size_t>(buffers.temporary_bytes);
  TORCHVOX_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(buffers.temporary, bytes, keys, values, count,
                                                      0, bits > 0 ? bits : 1, stream));
  // CUB keeps both buffers in step.
  buffers.current = keys.Current() == buffers.keys[now] ? now : 1 - now;
  return cudaSuccess;
}

namespace {

constexpr int kThreads = 256;
constexpr int kChunk = 1024;  // points of a block of summary_kernel

// The number of the first chunk of a packed cloud. offsets[b] / kChunk + b makes the ranges of
// clouds disjoint without a scan over the clouds.
__device__ __forceinline__ int64_t first_chunk(const CandidatePoints& args, int64_t b) {
  return clamp_index(args.points.offsets[b], 0, args.points.rows) / kChunk + b;
}

// The cloud of chunk `number`, and where the chunk begins in that cloud.
__device__ __forceinline__ int64_t cloud_of_chunk(const CandidatePoints& args,
                                                  const SpatialOrder& order, int64_t number,
                                                  int64_t& begin) {
  if (!args.points.packed) {
    const unsigned per_cloud = static_cast<unsigned>((args.points.rows + kChunk - 1) / kChunk);
    const unsigned b = static_cast<unsigned>(number) / per_cloud;
    begin = (number - int64_t{b} * per_cloud) * kChunk;
    return order.first_cloud + b;
  }
  const int64_t b = last_where(int64_t{0}, args.points.clouds,
                               [&](int64_t b) { return first_chunk(args, b) <= number; });
  const int64_t chunk = number - first_chunk(args, b);
  begin = chunk < 0 ? args.points.rows : chunk * kChunk;  // rows before the first cloud: no chunk
  return b;
}

__device__ __forceinline__ bool is_ordered(const SpatialOrder& order, const CandidateCloud& cloud) {
  return int64_t{cloud.tie.space()} > order.above;
}

__device__ __forceinline__ CloudSummary warp_summary(CloudSummary mine) {
  for (int axis = 0; axis < 3; ++axis) {
    mine.low[axis] = warp_max(mine.low[axis]);
    mine.high[axis] = warp_max(mine.high[axis]);
  }
  mine.first = warp_max(mine.first);
  mine.candidates = warp_sum(mine.candidates);
  return mine;
}

// One block per chunk: reads its points, and adds the box, first code and number of its candidates
// to the cloud's summary by integer max and add, whose order does not matter.
__global__ void __launch_bounds__(kThreads)
    summary_kernel(const __grid_constant__ CandidatePoints args,
                   const __grid_constant__ SpatialOrder order) {
  int64_t begin;
  const CandidateCloud cloud =
      CandidateCloud::of(args, cloud_of_chunk(args, order, blockIdx.x, begin));
  if (begin >= cloud.points || !is_ordered(order, cloud)) return;
  CloudSummary mine = {};
  const int64_t end = min(begin + kChunk, int64_t{cloud.points});
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const Point3 p = load_point(args, cloud, static_cast<uint32_t>(i));
    if (!is_candidate(args, p)) continue;
    mine.include(p);
    mine.first = max(mine.first, ~cloud.tie.code(static_cast<uint32_t>(i)));
  }
  __shared__ CloudSummary per_warp[kThreads / 32];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  mine = warp_summary(mine);
  if (lane == 0) per_warp[warp] = mine;
  __syncthreads();
  if (warp > 0) return;
  mine = warp_summary(lane < kThreads / 32 ? per_warp[lane] : CloudSummary{});
  if (lane > 0 || mine.candidates == 0) return;
  CloudSummary& summary = order.summaries[cloud.number - order.first_cloud];
  for (int axis = 0; axis < 3; ++axis) {
    atomicMax(&summary.low[axis], mine.low[axis]);
    atomicMax(&summary.high[axis], mine.high[axis]);
  }
  atomicMax(&summary.first, mine.first);
  atomicAdd(&summary.candidates, mine.candidates);
}

// One thread per position: reads its point, writes its key (cloud, then 1 if it is not a candidate,
// then its place on the curve) and the position. In a packed call points outside every cloud stay
// between the clouds.
__global__ void __launch_bounds__(kThreads)
    key_kernel(const __grid_constant__ CandidatePoints args,
               const __grid_constant__ SpatialOrder order, int axis_bits) {
  for (int64_t p = global_thread(); p < order.points; p += global_stride()) {
    int64_t rank;  // order of the segment that holds the position
    int64_t b;
    if (args.points.packed) {
      rank = first_where(int64_t{0}, args.points.clouds + 1,  // how many offsets are at most p
                         [&](int64_t k) { return args.points.offsets[k] > p; });
      b = rank >= 1 && rank <= args.points.clouds ? rank - 1 : -1;
    } else {
      rank = static_cast<uint32_t>(p) / static_cast<uint32_t>(args.points.rows);
      b = order.first_cloud + rank;
    }
    uint32_t place = 1u << (3 * axis_bits);  // after the candidates
    if (b >= 0) {
      const CandidateCloud cloud = CandidateCloud::of(args, b);
      const int64_t i =
          p + order.first_cloud * args.points.rows * (args.points.packed ? 0 : 1) - cloud.first;
      if (i >= 0 && i < cloud.points && is_ordered(order, cloud)) {
        const Point3 point = load_point(args, cloud, static_cast<uint32_t>(i));
        if (is_candidate(args, point)) {
          place = curve_place(point, order.summaries[b - order.first_cloud], axis_bits);
        }
      }
    }
    const int shift = 3 * axis_bits + 1;
    order.sort.keys[order.sort.current][p] =
        (shift < 32 ? static_cast<uint32_t>(rank) << shift : 0) | place;
    order.sort.values[order.sort.current][p] = static_cast<uint32_t>(p);
  }
}

// One thread per position of the sorted keys: reads the point there, writes its coordinates and
// code.
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const __grid_constant__ CandidatePoints args,
                  const __grid_constant__ SpatialOrder order, int axis_bits) {
  const uint32_t* const keys = order.sort.keys[order.sort.current];
  const uint32_t* const positions = order.sort.values[order.sort.current];
  const int shift = 3 * axis_bits + 1;
  for (int64_t p = global_thread(); p < order.points; p += global_stride()) {
    const uint32_t key = keys[p];
    if (key >> (shift - 1) & 1) {  // not a candidate; read only if clouds overlap
      order.sorted[p] = make_float4(NAN, NAN, NAN, __uint_as_float(kNoCode));
      continue;
    }
    const int64_t rank = shift < 32 ? key >> shift : 0;
    const CandidateCloud cloud =
        CandidateCloud::of(args, args.points.packed ? rank - 1 : order.first_cloud + rank);
    const int64_t begin = args.points.packed ? cloud.first : rank * args.points.rows;
    // Clamped, so that offsets in disorder, whose clouds overlap, stay in bounds too.
    const uint32_t i = static_cast<uint32_t>(
        clamp_index(int64_t{positions[p]} - begin, 0, int64_t{cloud.points} - 1));
    const Point3 point = load_point(args, cloud, i);
    order.sorted[p] = make_float4(point.a, point.b, point.c, __uint_as_float(cloud.tie.code(i)));
  }
}

}  // namespace

SpatialOrder::SpatialOrder(const CandidatePoints& args, int64_t clouds, int64_t above,
                           Workspace& workspace)
    : clouds(clouds),
      points(args.points.packed ? args.points.rows : clouds * args.points.rows),
      above(above),
      summaries(workspace.take<CloudSummary>(clouds)),
      sorted(workspace.take<float4>(points)),
      sort(points, workspace) {}

cudaError_t make_spatial_order(const CandidatePoints& args, SpatialOrder& order,
                               cudaStream_t stream) {
  if (order.clouds == 0 || order.points == 0) return cudaSuccess;
  const int64_t chunks = args.points.packed
      ? args.points.rows / kChunk + args.points.clouds
      : order.clouds * ceil_div<int64_t>(args.points.rows, kChunk);
  // A key has the cloud and one flag first, then about one cell per point; rounded up to whole
  // passes of the sort, 8 bits each.
  const int cloud_bits = key_bits(args.points.packed ? args.points.clouds + 2 : order.clouds);
  const int needed = cloud_bits + 1 + key_bits(args.points.rows);
  const int bits = needed < 32 ? (needed + 7) / 8 * 8 : 32;
  const int axis_bits = (bits - 1 - cloud_bits) / 3 < 10 ? (bits - 1 - cloud_bits) / 3 : 10;
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(order.summaries, 0, order.clouds * sizeof(CloudSummary), stream));
  TORCHVOX_CUDA_CHECK(launch_blocks(summary_kernel, grid_x(chunks), kThreads, stream, args, order));
  const unsigned blocks = grid_x(ceil_div<int64_t>(order.points, kThreads));
  order.sort.current = 0;
  order.axis_bits = axis_bits;
  TORCHVOX_CUDA_CHECK(launch_blocks(key_kernel, blocks, kThreads, stream, args, order, axis_bits));
  TORCHVOX_CUDA_CHECK(radix_sort(order.sort, order.points, cloud_bits + 1 + 3 * axis_bits, stream));
  return launch_blocks(gather_kernel, blocks, kThreads, stream, args, order, axis_bits);
}

}  // namespace torchvox
