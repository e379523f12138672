// SPDX-License-Identifier: Apache-2.0
//
// Points in Morton order of a cube with one scale for all axes, refined by median splits along the
// longest axis inside chunks. The order decides the size of the boxes that F3 skips by, nothing
// else: ties, rounding and lost bits cost speed, not exactness.
#include "csrc/kernels/sampling/fps_device.cuh"
#include "csrc/kernels/sampling/fps_kernels.cuh"
#include "csrc/kernels/sampling/morton.h"

namespace torchvox {
namespace {

constexpr int kChunk = 4096;
constexpr int kIdBits = 12;
constexpr int kSmallestSegment = 256;  // what one warp orders alone
constexpr int kSplitThreads = 512;
constexpr int kItems = kChunk / kSplitThreads;
constexpr int kSummaryThreads = 256;
constexpr uint32_t kPad = 0xffffffffu;
static_assert(kChunk == 1 << kIdBits && kSplitThreads / 32 * kSmallestSegment == kChunk);

// Chunks of a ragged cloud are numbered from ptr[b] / kChunk + b: ranges that never overlap and
// need no scan over the clouds.
__device__ __forceinline__ int64_t first_chunk(const FpsArgs& args, int64_t b) {
  return clamp_index(args.ptr[b], 0, args.capacity) / kChunk + b;
}

// Whose chunk `number` is, and where it begins in that cloud.
__device__ __forceinline__ int64_t cloud_of_chunk(const FpsArgs& args, const SpatialOrder& order,
                                                  int64_t number, int64_t& begin) {
  if (!args.ragged) {
    const unsigned per_cloud = static_cast<unsigned>((args.capacity + kChunk - 1) / kChunk);
    const unsigned b = static_cast<unsigned>(number) / per_cloud;
    begin = (number - int64_t{b} * per_cloud) * kChunk;
    return order.first_cloud + b;
  }
  int64_t low = 0, high = args.clouds;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (first_chunk(args, middle) <= number) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const int64_t chunk = number - first_chunk(args, low);
  begin = chunk < 0 ? args.capacity : chunk * kChunk;  // rows before the first cloud: no chunk
  return low;
}

__device__ __forceinline__ bool is_ordered(const SpatialOrder& order, const FpsCloud& cloud) {
  return int64_t{cloud.tie.space()} > order.above;
}

// One block per chunk: box, first code and number of its candidates into the cloud's summary.
// Integer max and add: the order of the atomics is of no consequence.
__global__ void __launch_bounds__(kSummaryThreads)
    summary_kernel(const __grid_constant__ FpsArgs args,
                   const __grid_constant__ SpatialOrder order) {
  int64_t begin;
  const FpsCloud cloud = FpsCloud::of(args, cloud_of_chunk(args, order, blockIdx.x, begin));
  if (begin >= cloud.points || !is_ordered(order, cloud)) return;
  CloudSummary mine = {};
  const int64_t end = min(begin + kChunk, int64_t{cloud.points});
  for (int64_t i = begin + threadIdx.x; i < end; i += kSummaryThreads) {
    const Point3 p = load_point(args, cloud, static_cast<uint32_t>(i));
    if (!is_candidate(args, p)) continue;
    const float axes[3] = {p.a, p.b, p.c};
    for (int axis = 0; axis < 3; ++axis) {
      const uint32_t bits = ordered_bits(axes[axis]);
      mine.low[axis] = max(mine.low[axis], ~bits);
      mine.high[axis] = max(mine.high[axis], bits);
    }
    mine.first = max(mine.first, ~cloud.tie.code(static_cast<uint32_t>(i)));
    ++mine.candidates;
  }
  CloudSummary& summary = order.summaries[cloud.number - order.first_cloud];
  const bool lead = threadIdx.x % 32 == 0;
  for (int axis = 0; axis < 3; ++axis) {
    const uint32_t low = warp_max(mine.low[axis]), high = warp_max(mine.high[axis]);
    if (lead && low) atomicMax(&summary.low[axis], low);
    if (lead && high) atomicMax(&summary.high[axis], high);
  }
  const uint32_t first = warp_max(mine.first);
  if (lead && first) atomicMax(&summary.first, first);
  for (int step = 16; step > 0; step /= 2) {
    mine.candidates += __shfl_xor_sync(kFullWarp, mine.candidates, step);
  }
  if (lead && mine.candidates) atomicAdd(&summary.candidates, mine.candidates);
}

// Key of each position: cloud, then whether it is no candidate, then the Morton code. A thread per
// position; in a ragged call points outside every cloud keep their place between the clouds.
__global__ void __launch_bounds__(kSummaryThreads)
    key_kernel(const __grid_constant__ FpsArgs args, const __grid_constant__ SpatialOrder order,
               int axis_bits) {
  for (int64_t p = global_thread(); p < order.points; p += global_stride()) {
    int64_t rank;  // order of the segment that holds the position
    int64_t b;
    if (args.ragged) {
      int64_t low = 0, high = args.clouds + 1;  // how many offsets are at most p
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (args.ptr[middle] <= p) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      rank = low;
      b = rank >= 1 && rank <= args.clouds ? rank - 1 : -1;
    } else {
      rank = static_cast<uint32_t>(p) / static_cast<uint32_t>(args.capacity);
      b = order.first_cloud + rank;
    }
    uint32_t place = 1u << (3 * axis_bits);  // after the candidates
    if (b >= 0) {
      const FpsCloud cloud = FpsCloud::of(args, b);
      const int64_t i = p + order.first_cloud * args.capacity * (args.ragged ? 0 : 1) - cloud.first;
      if (i >= 0 && i < cloud.points && is_ordered(order, cloud)) {
        const Point3 point = load_point(args, cloud, static_cast<uint32_t>(i));
        if (is_candidate(args, point)) {
          const CloudSummary summary = order.summaries[b - order.first_cloud];
          float low[3], high[3];
          for (int axis = 0; axis < 3; ++axis) {
            low[axis] = from_ordered_bits(~summary.low[axis]);
            high[axis] = from_ordered_bits(summary.high[axis]);
          }
          const uint32_t cells = 1u << axis_bits;
          const float scale = scale_of(low, high, cells);
          place = morton_code(point, low, scale, cells);
        }
      }
    }
    const int shift = 3 * axis_bits + 1;
    order.sort.keys[order.sort.current][p] =
        (shift < 32 ? static_cast<uint32_t>(rank) << shift : 0) | place;
    order.sort.values[order.sort.current][p] = static_cast<uint32_t>(p);
  }
}

// Ascending bitonic sort of every aligned run of `segment` items. Warp w works on the pairs of
// items [256 w, 256 w + 256), so narrow steps need no block barrier.
__device__ void sort_segments(uint32_t* items, int segment) {
  int last_span = kChunk;
  const auto step = [&](int span, auto pair_of) {
    if (span > kSmallestSegment || last_span > kSmallestSegment) {
      __syncthreads();
    } else {
      __syncwarp();
    }
    last_span = span;
    const int base = threadIdx.x / 32 * (kSmallestSegment / 2) + threadIdx.x % 32;
    for (int r = 0; r < kSmallestSegment / 2; r += 32) {
      const int2 pair = pair_of(base + r);
      const uint32_t x = items[pair.x], y = items[pair.y];
      if (x > y) {
        items[pair.x] = y;
        items[pair.y] = x;
      }
    }
  };
  for (int k = 2; k <= segment; k *= 2) {
    step(k, [k](int t) {
      const int i = t / (k / 2) * k + t % (k / 2);
      return make_int2(i, i ^ (k - 1));
    });
    for (int j = k / 4; j > 0; j /= 2) {
      step(2 * j, [j](int t) {
        const int i = ((t & ~(j - 1)) << 1) | (t & (j - 1));
        return make_int2(i, i + j);
      });
    }
  }
  __syncthreads();
}

// One block per chunk of a cloud's Morton order: halves the chunk along its longest axis, then each
// half along its own, down to runs of 128, and writes the points in that order. Works on
// coordinates of 16 bits in the chunk's own cube, which leaves room for a whole chunk in 40 KB.
__global__ void __launch_bounds__(kSplitThreads)
    split_kernel(const __grid_constant__ FpsArgs args, const __grid_constant__ SpatialOrder order) {
  __shared__ uint16_t cells[3][kChunk];
  __shared__ uint32_t items[kChunk];
  __shared__ uint32_t box_low[3][kSplitThreads / 32], box_high[3][kSplitThreads / 32];
  int64_t begin;
  const FpsCloud cloud = FpsCloud::of(args, cloud_of_chunk(args, order, blockIdx.x, begin));
  if (!is_ordered(order, cloud)) return;
  const int64_t candidates = min(
      int64_t{order.summaries[cloud.number - order.first_cloud].candidates}, int64_t{cloud.points});
  if (begin >= candidates) return;
  const int count = static_cast<int>(min(int64_t{kChunk}, candidates - begin));
  const int64_t segment_begin =
      args.ragged ? cloud.first : (cloud.number - order.first_cloud) * args.capacity;
  const uint32_t* const positions = order.sort.values[order.sort.current] + segment_begin + begin;
  // Clamped, so that offsets in disorder, whose clouds overlap, stay in bounds too.
  const auto index_at = [&](int id) {
    const int64_t i = int64_t{positions[id]} - segment_begin;
    return static_cast<uint32_t>(clamp_index(i, 0, int64_t{cloud.points} - 1));
  };
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  uint32_t low[3] = {kPad, kPad, kPad}, high[3] = {0, 0, 0};
  for (int id = threadIdx.x; id < count; id += kSplitThreads) {
    const Point3 p = load_point(args, cloud, index_at(id));
    const float axes[3] = {p.a, p.b, p.c};
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = min(low[axis], ordered_bits(axes[axis]));
      high[axis] = max(high[axis], ordered_bits(axes[axis]));
    }
  }
  float chunk_low[3], chunk_high[3];
  for (int axis = 0; axis < 3; ++axis) {
    chunk_low[axis] = from_ordered_bits(block_min(low[axis]));
    chunk_high[axis] = from_ordered_bits(~block_min(~high[axis]));
  }
  const float scale = scale_of(chunk_low, chunk_high, 1u << 16);
  for (int id = threadIdx.x; id < kChunk; id += kSplitThreads) {
    items[id] = id < count ? static_cast<uint32_t>(id) : kPad;
    if (id >= count) continue;
    const Point3 p = load_point(args, cloud, index_at(id));
    cells[0][id] = static_cast<uint16_t>(cell_of(p.a, chunk_low[0], scale, 1u << 16));
    cells[1][id] = static_cast<uint16_t>(cell_of(p.b, chunk_low[1], scale, 1u << 16));
    cells[2][id] = static_cast<uint16_t>(cell_of(p.c, chunk_low[2], scale, 1u << 16));
  }
  __syncthreads();

  for (int segment = kChunk; segment >= kSmallestSegment; segment /= 2) {
    uint32_t mine[kItems];
    for (int axis = 0; axis < 3; ++axis) low[axis] = kPad, high[axis] = 0;
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
      mine[r] = items[warp * kSmallestSegment + r * 32 + lane];
      if (mine[r] == kPad) continue;
      const int id = mine[r] & (kChunk - 1);
      for (int axis = 0; axis < 3; ++axis) {
        low[axis] = min(low[axis], uint32_t{cells[axis][id]});
        high[axis] = max(high[axis], uint32_t{cells[axis][id]});
      }
    }
    for (int axis = 0; axis < 3; ++axis) {
      low[axis] = warp_min(low[axis]);
      high[axis] = warp_max(high[axis]);
      if (lane == 0) {
        box_low[axis][warp] = low[axis];
        box_high[axis][warp] = high[axis];
      }
    }
    __syncthreads();
    const int warps = segment / kSmallestSegment, first_warp = warp / warps * warps;
    int longest = 0;
    int64_t length = -1;
    for (int axis = 0; axis < 3; ++axis) {
      uint32_t lowest = kPad, highest = 0;
      for (int w = first_warp; w < first_warp + warps; ++w) {
        lowest = min(lowest, box_low[axis][w]);
        highest = max(highest, box_high[axis][w]);
      }
      if (int64_t{highest} - lowest > length) {
        length = int64_t{highest} - lowest;
        longest = axis;
      }
    }
#pragma unroll
    for (int r = 0; r < kItems; ++r) {
      if (mine[r] == kPad) continue;
      const uint32_t id = mine[r] & (kChunk - 1);
      items[warp * kSmallestSegment + r * 32 + lane] = uint32_t{cells[longest][id]} << kIdBits | id;
    }
    sort_segments(items, segment);  // begins and ends with a block barrier
  }

  for (int r = threadIdx.x; r < count; r += kSplitThreads) {
    const uint32_t i = index_at(items[r] & (kChunk - 1));
    const Point3 p = load_point(args, cloud, i);
    order.sorted[segment_begin + begin + r] =
        make_float4(p.a, p.b, p.c, __uint_as_float(cloud.tie.code(i)));
  }
}

int bits_for(int64_t values) {
  int bits = 0;
  while ((int64_t{1} << bits) < values) ++bits;
  return bits;
}

}  // namespace

SpatialOrder::SpatialOrder(const FpsArgs& args, const FpsPlan& plan, Workspace& workspace)
    : clouds(plan.clouds_at_once), points(points_at_once(args, plan)), above(plan.block_room()) {
  summaries = workspace.take<CloudSummary>(clouds);
  sorted = workspace.take<float4>(points);
  for (int buffer = 0; buffer < 2; ++buffer) {
    sort.keys[buffer] = workspace.take<uint32_t>(points);
    sort.values[buffer] = workspace.take<uint32_t>(points);
  }
  sort.temporary_bytes = radix_sort_bytes(points);
  sort.temporary = workspace.take<char>(sort.temporary_bytes);
}

cudaError_t make_spatial_order(const FpsArgs& args, SpatialOrder& order, cudaStream_t stream) {
  if (order.clouds == 0 || order.points == 0) return cudaSuccess;
  const int64_t chunks = args.ragged ? args.capacity / kChunk + args.clouds
                                     : order.clouds * ceil_div<int64_t>(args.capacity, kChunk);
  // The cloud and one flag come first in a key; what is left of 32 bits orders the points.
  const int cloud_bits = bits_for(args.ragged ? args.clouds + 2 : order.clouds);
  const int axis_bits = (31 - cloud_bits) / 3 < 10 ? (31 - cloud_bits) / 3 : 10;
  TORCHVOX_CUDA_CHECK(
      cudaMemsetAsync(order.summaries, 0, order.clouds * sizeof(CloudSummary), stream));
  summary_kernel<<<static_cast<unsigned>(chunks), kSummaryThreads, 0, stream>>>(args, order);
  TORCHVOX_CUDA_CHECK(cudaGetLastError());
  const int64_t key_blocks = ceil_div<int64_t>(order.points, kSummaryThreads);
  order.sort.current = 0;
  key_kernel<<<static_cast<unsigned>(key_blocks), kSummaryThreads, 0, stream>>>(args, order,
                                                                                axis_bits);
  TORCHVOX_CUDA_CHECK(cudaGetLastError());
  TORCHVOX_CUDA_CHECK(radix_sort(order.sort, order.points, cloud_bits + 1 + 3 * axis_bits, stream));
  split_kernel<<<static_cast<unsigned>(chunks), kSplitThreads, 0, stream>>>(args, order);
  return cudaGetLastError();
}

}  // namespace torchvox
