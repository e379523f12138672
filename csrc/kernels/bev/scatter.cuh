// SPDX-License-Identifier: Apache-2.0
//
// The pass over the points on the device, one thread per point, and the clearing that precedes it.
// All kernels here belong to a chain of dependent launches.
#pragma once

#include <algorithm>
#include <type_traits>

#include "csrc/kernels/bev/grid.h"
#include "csrc/kernels/core/launch.cuh"

namespace torchvox {

inline constexpr int kBevThreads = 256;

// Memory to fill with a repeated word, by a whole grid; `data` is 16-byte aligned.
struct BevFill {
  void* data = nullptr;
  int64_t bytes = 0;
  uint32_t word = 0;

  __device__ void fill() const {
    const int64_t quads = bytes / 16;
    uint4* const wide = static_cast<uint4*>(data);
    const uint4 quad = make_uint4(word, word, word, word);
    for (int64_t i = global_thread(); i < quads; i += global_stride()) wide[i] = quad;
    const int64_t rest = 16 * quads + global_thread();
    if (rest < bytes) static_cast<uint8_t*>(data)[rest] = uint8_t(word >> (8 * (rest % 4)));
  }
};

// The first kernel of a chain: all threads together fill each of the ranges.
template <class... Fills>
__global__ void __launch_bounds__(kBevThreads) bev_clear_kernel(Fills... fills) {
  let_next_begin();
  (fills.fill(), ...);
}
template <class... Fills>
cudaError_t launch_clear(const CudaContext& context, const Fills&... fills) {
  const int64_t most = std::max({fills.bytes...});
  // One block per multiprocessor is enough, and leaves room for the next kernel to move in.
  const unsigned blocks = blocks_for(ceil_div<int64_t>(most, 16), kBevThreads, context.target, 1);
  return launch_blocks(bev_clear_kernel<Fills...>, blocks, kBevThreads, context.stream, fills...);
}

// The point of one thread; `sample` is -1 if there is none.
struct BevThread {
  int64_t row, sample;
  BevPoint point;

  __device__ bool used() const { return point.fate == BevFate::kUsed; }
};

// Whether a row of fp32 points can be read as 16 bytes.
inline bool has_quads(const CloudBatch& points) {
  return points.dtype == DType::kFloat && points.columns >= 4 && points.row_stride % 4 == 0 &&
      reinterpret_cast<uintptr_t>(points.data) % 16 == 0;
}

template <class T>
__device__ __forceinline__ BevThread load_point(const CloudBatch& points, const BevGrid& grid,
                                                bool quads, int64_t row) {
  BevThread thread{row, -1, {BevFate::kNonFinite, 0, 0.f}};
  if (thread.row < points.rows) thread.sample = points.packed_owner(thread.row);
  if (thread.sample < 0) return thread;
  if (std::is_same<T, float>::value && quads) {
    const float4 p = static_cast<const float4*>(points.data)[thread.row * (points.row_stride / 4)];
    thread.point = place_point(grid, p.x, p.y, p.z, thread.sample);
  } else {
    thread.point = locate_point<T>(points, grid, thread.row, thread.sample);
  }
  return thread;
}
template <class T>
__device__ __forceinline__ BevThread load_point(const CloudBatch& points, const BevGrid& grid,
                                                bool quads) {
  return load_point<T>(points, grid, quads, global_thread());
}

// True when the thread's point is used and neither neighboring lane has a point of the same cell
// with a larger key; of equal keys the first leads. All other points cannot be the maximum of their
// cell. It pays because a LiDAR sweep lists most points of a cell one after another. Called by
// whole warps.
template <class Key>
__device__ __forceinline__ bool leads_neighbors(const BevThread& thread, Key key) {
  const unsigned all = 0xffffffffu, lane = threadIdx.x % 32;
  const int64_t cell = thread.used() ? thread.point.cell : -1;
  const int64_t cell_before = __shfl_up_sync(all, cell, 1);
  const int64_t cell_after = __shfl_down_sync(all, cell, 1);
  const Key before = __shfl_up_sync(all, key, 1), after = __shfl_down_sync(all, key, 1);
  const bool loses = (lane > 0 && cell_before == cell && before >= key) ||
      (lane < 31 && cell_after == cell && after > key);
  return cell >= 0 && !loses;
}

// True when the thread's point is used and has the largest key of its run, the neighboring lanes
// with points of one cell. Leaves fewer than leads_neighbors, at more instructions.
template <class Key>
__device__ __forceinline__ bool leads_run(const BevThread& thread, Key key) {
  const unsigned all = 0xffffffffu, lane = threadIdx.x % 32;
  const int64_t cell = thread.used() ? thread.point.cell : -1;
  const int64_t cell_before = __shfl_up_sync(all, cell, 1);
  const unsigned heads = __ballot_sync(all, lane == 0 || cell != cell_before);
  const unsigned first = 31 - __clz(heads & (all >> (31 - lane)));
  const unsigned later = lane == 31 ? 0 : heads >> (lane + 1);
  const unsigned last = later ? lane + __ffs(later) - 1 : 31;
  Key best = key;
#pragma unroll
  for (unsigned d = 1; d < 32; d *= 2) {
    const Key other = __shfl_up_sync(all, best, d);
    if (lane >= first + d && other > best) best = other;
  }
  best = __shfl_sync(all, best, last);
  const unsigned run = (all >> (31 - last)) & (all << first);
  const unsigned equal = __ballot_sync(all, key == best) & run;
  return cell >= 0 && __ffs(equal) - 1 == int(lane);
}

// Adds the counts of one thread block to `counts` [batches + 1, kBevCounts]: warps vote, and the
// block adds up in shared memory, once for the whole call and once for the sample of its first
// thread. A thread of another sample adds to that sample's row itself. Every function is called by
// the whole block.
class BlockCounts {
 public:
  // May run before `counts` is cleared. `sums` is shared memory; threads of a block have
  // consecutive rows.
  __device__ BlockCounts(const CloudBatch& points, const BevThread& thread,
                         int32_t (&sums)[2 * kBevCounts])
      : thread_(thread), sums_(sums), first_sample_(points.block_of(thread.row - threadIdx.x)) {
    if (threadIdx.x < 2 * kBevCounts) sums_[threadIdx.x] = 0;
    __syncthreads();
    for (int c = kBevPointsUsed; c < kBevCounts; ++c) {
      vote(c, thread.sample >= 0 && c == count_of(thread.point.fate));
    }
  }
  // After `counts` is cleared. `filled`: the thread's point was the first of its cell.
  __device__ void add_to(int32_t* counts, bool filled) {
    vote(kBevCellsFilled, filled);
    if (thread_.sample >= 0 && thread_.sample != first_sample_) {
      int32_t* const row = counts + (thread_.sample + 1) * kBevCounts;
      atomicAdd(&row[count_of(thread_.point.fate)], 1);
      if (filled) atomicAdd(&row[kBevCellsFilled], 1);
    }
    __syncthreads();
    if (threadIdx.x < 2 * kBevCounts && sums_[threadIdx.x]) {
      const int64_t row = threadIdx.x < kBevCounts ? 0 : first_sample_ + 1;
      atomicAdd(&counts[row * kBevCounts + threadIdx.x % kBevCounts], sums_[threadIdx.x]);
    }
  }

 private:
  __device__ void vote(int column, bool hit) {
    const unsigned votes = __ballot_sync(0xffffffffu, hit);
    const unsigned first = __ballot_sync(0xffffffffu, hit && thread_.sample == first_sample_);
    if (threadIdx.x % 32 == 0 && votes) {
      atomicAdd(&sums_[column], __popc(votes));
      atomicAdd(&sums_[kBevCounts + column], __popc(first));
    }
  }

  const BevThread& thread_;
  int32_t* sums_;
  int64_t first_sample_;
};

// One thread per point: reads and counts it, and hands it to visit(thread, prepared), which enters
// it into tables and returns whether it was the first of its cell. visit.prepare(thread) comes
// before and must read nothing but points. Both are called by whole warps.
template <class T, class Visit>
__global__ void __launch_bounds__(kBevThreads)
    bev_scatter_kernel(CloudBatch points, BevGrid grid, bool quads, int32_t* counts,
                       const __grid_constant__ Visit visit) {
  __shared__ int32_t sums[2 * kBevCounts];
  let_next_begin();
  const BevThread thread = load_point<T>(points, grid, quads);
  const auto prepared = visit.prepare(thread);
  BlockCounts block(points, thread, sums);
  wait_for_previous();
  block.add_to(counts, visit(thread, prepared));
}

inline int64_t count_bytes(const CloudBatch& points) {
  return (points.clouds + 1) * kBevCounts * static_cast<int64_t>(sizeof(int32_t));
}

inline unsigned point_blocks(const CloudBatch& points) {
  return static_cast<unsigned>(ceil_div<int64_t>(points.rows, kBevThreads));
}

// Goes after bev_clear_kernel. `counts` is [batches + 1, kBevCounts].
template <class Visit>
cudaError_t launch_scatter(const CloudBatch& points, const BevGrid& grid, int32_t* counts,
                           const Visit& visit, const CudaContext& context) {
  if (points.rows == 0) return cudaSuccess;
  return with_point_type(points.dtype, [&](auto type) {
    return launch_after(bev_scatter_kernel<decltype(type), Visit>, point_blocks(points),
                        kBevThreads, context, points, grid, has_quads(points), counts, visit);
  });
}

}  // namespace torchvox
