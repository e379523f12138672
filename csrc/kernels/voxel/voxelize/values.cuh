// SPDX-License-Identifier: Apache-2.0
//
// How one warp orders the points of a segment and calculates its row of `features`.
#pragma once

#include "csrc/kernels/voxel/voxelize/work.cuh"

namespace torchvox {

// ---- Order of the points of one segment. Every lane of the warp calls each function. ----

inline constexpr uint32_t kFewKept = 16;

// One step of a bitonic network: lanes `distance` apart compare and swap.
__device__ __forceinline__ uint32_t compare_swap(uint32_t value, int distance, bool ascending) {
  const uint32_t other = __shfl_xor_sync(kFullWarp, value, distance);
  const bool lower = (threadIdx.x & distance) == 0;
  return (lower == ascending) == (other < value) ? other : value;
}

// Sorts one value per lane, ascending by lane.
__device__ __forceinline__ uint32_t warp_sort(uint32_t value) {
  for (int run = 2; run <= 32; run *= 2) {
    for (int distance = run / 2; distance > 0; distance /= 2) {
      value = compare_swap(value, distance, run == 32 || (threadIdx.x & run) == 0);
    }
  }
  return value;
}

// Returns the `keep` smallest of n points and of `best`, one value per lane, in no order, and
// kNone32 in the other lanes. n <= 32 * kWidth; the points and the values of `best` are at least
// `keep` together. All points are read at once; then bisection in registers finds the limit below
// which `keep` values lie.
template <int kWidth>
__device__ __forceinline__ uint32_t keep_smallest(uint32_t best, const uint32_t* points, uint32_t n,
                                                  uint32_t keep, uint32_t* scratch) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t value[kWidth + 1], largest = 0;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    value[k] = 32 * k + lane < n ? points[32 * k + lane] : kNone32;
  }
  value[kWidth] = best;
#pragma unroll
  for (int k = 0; k <= kWidth; ++k) {
    if (value[k] != kNone32) largest = max(largest, value[k]);
  }
  uint32_t limit = 0;  // its highest bits: at most `keep` values are below
  for (uint32_t bit = 1u << (31 - __clz(warp_max(largest) | 1)); bit > 0; bit /= 2) {
    uint32_t count = 0;
#pragma unroll
    for (int k = 0; k <= kWidth; ++k) count += value[k] < limit + bit;
    count = warp_sum(count);
    if (count <= keep) limit += bit;
    if (count == keep) break;
    // Now count(value < limit) <= keep < count(value < limit + bit).
  }
  uint32_t total = 0;
#pragma unroll
  for (int k = 0; k <= kWidth; ++k) {
    const unsigned votes = __ballot_sync(kFullWarp, value[k] < limit);
    if (value[k] < limit) scratch[total + __popc(votes & lanes_below(lane))] = value[k];
    total += __popc(votes);
  }
  __syncwarp();
  best = lane < total ? scratch[lane] : kNone32;
  __syncwarp();
  return best;
}

// The same ascending by lane, one smallest value after the other, which is faster for few.
template <int kWidth>
__device__ __forceinline__ uint32_t take_smallest(uint32_t best, const uint32_t* points, uint32_t n,
                                                  uint32_t keep) {
  const uint32_t lane = threadIdx.x % 32;
  uint32_t value[kWidth + 1];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    value[k] = 32 * k + lane < n ? points[32 * k + lane] : kNone32;
  }
  value[kWidth] = best;
  best = kNone32;
#pragma unroll 1
  for (uint32_t rank = 0; rank < keep; ++rank) {
    uint32_t least = value[0];
#pragma unroll
    for (int k = 1; k <= kWidth; ++k) least = min(least, value[k]);
    least = ~warp_max(~least);
    if (lane == rank) best = least;
#pragma unroll
    for (int k = 0; k <= kWidth; ++k) {
      if (value[k] == least) value[k] = kNone32;
    }
  }
  return best;
}

// warp_select() for at most kFewKept. Not inlined, because its values would push others out of
// the registers of a larger kernel.
static __device__ __noinline__ uint32_t warp_select_few(const uint32_t* points, uint32_t n,
                                                        uint32_t keep) {
  constexpr uint32_t kMany = 256;
  if (n <= 64) return take_smallest<2>(kNone32, points, n, keep);
  if (n <= 128) return take_smallest<4>(kNone32, points, n, keep);
  uint32_t best = kNone32;
#pragma unroll 1
  for (uint32_t first = 0; first < n; first += kMany) {
    best = take_smallest<kMany / 32>(best, points + first, min(n - first, kMany), keep);
  }
  return best;
}

// The `keep` (1 to 32) smallest of n > 32 points, ascending by lane. `scratch` [32] is in shared
// memory.
__device__ inline uint32_t warp_select(const uint32_t* points, uint32_t n, uint32_t keep,
                                       uint32_t* scratch) {
  constexpr uint32_t kMany = 256;
  uint32_t best = kNone32;
  if (keep <= kFewKept) return warp_select_few(points, n, keep);
  if (n <= 128) {
    best = keep_smallest<4>(best, points, n, keep, scratch);
  } else {
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += kMany) {
      best = keep_smallest<kMany / 32>(best, points + first, min(n - first, kMany), keep, scratch);
    }
  }
  return warp_sort(best);
}

// `threads` threads, for which sync() waits, sort n points into `order` in shared memory, which has
// room for the next power of two, at least 64.
template <class Sync>
__device__ __forceinline__ void bitonic_sort(const uint32_t* points, uint32_t n, uint32_t* order,
                                             uint32_t thread, uint32_t threads, const Sync& sync) {
  uint32_t size = 64;
  while (size < n) size *= 2;
  for (uint32_t k = thread; k < size; k += threads) order[k] = k < n ? points[k] : kNone32;
  sync();
  for (uint32_t run = 2; run <= size; run *= 2) {
    for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
      for (uint32_t pair = thread; pair < size / 2; pair += threads) {
        const uint32_t low = 2 * pair - (pair & (distance - 1)), high = low + distance;
        const uint32_t a = order[low], b = order[high];
        if ((a > b) == ((low & run) == 0)) {
          order[low] = b;
          order[high] = a;
        }
      }
      sync();
    }
  }
}

// Writes the stored points of a segment to `order`, in input order, and the slots of all its
// points. The segment has more than 32 points and at most work.sort_above.
__device__ inline void order_segment(const VoxelizeArgs& args, const VoxelWork& work,
                                     const VoxelSegment& segment, uint32_t* order) {
  const uint32_t lane = threadIdx.x % 32, n = segment.count;
  const uint32_t stored = static_cast<uint32_t>(args.stored(n));
  const uint32_t* points = work.perm + segment.place;
  int32_t* slots = args.point_slot;
  if (stored == 0) {
    for (uint32_t k = lane; slots != nullptr && k < n; k += 32) slots[points[k]] = -1;
    return;
  }
  if (stored <= 32) {
    const uint32_t point = warp_select(points, n, stored, order);
    if (lane < stored) order[lane] = point;
    if (slots != nullptr) {
      if (lane < stored) slots[point] = static_cast<int32_t>(lane);
      const uint32_t last = __shfl_sync(kFullWarp, point, static_cast<int>(stored) - 1);
      for (uint32_t k = lane; k < n; k += 32) {
        if (points[k] > last) slots[points[k]] = -1;
      }
    }
    __syncwarp();
    return;
  }
  bitonic_sort(points, n, order, lane, 32, [] { __syncwarp(); });
  for (uint32_t k = lane; slots != nullptr && k < n; k += 32) {
    slots[order[k]] = k < stored ? static_cast<int32_t>(k) : -1;
  }
}

enum class ReduceKind { kNothing, kCopy, kSum, kBest };

inline constexpr int kChunkColumns = 8;  // columns of a point that a lane reads at once
inline constexpr int kTileStride = kChunkColumns + 1;  // odd, against bank conflicts

// A voxel whose row is written.
struct Voxel {
  VoxelSegment segment;
  int64_t row;
  int32_t sample;
  Cell cell;
  uint32_t stored;
};

__device__ __forceinline__ Voxel make_voxel(const VoxelizeArgs& args, const VoxelWork& work,
                                            const VoxelSegment& segment, int64_t row,
                                            bool with_cell) {
  Voxel voxel{};
  voxel.segment = segment;
  voxel.row = row;
  if (with_cell && args.keys == nullptr) {
    int64_t sample;
    const uint64_t key = work.short_keys ? static_cast<uint32_t>(segment.key) : segment.key;
    voxel.cell = args.grid.cell_of(key, &sample);
    voxel.sample = static_cast<int32_t>(sample);
  }
  voxel.stored = static_cast<uint32_t>(args.stored(segment.count));
  return voxel;
}

// The voxel of another lane, those members that its points need.
__device__ __forceinline__ Voxel voxel_of_lane(const VoxelizeArgs& args, const Voxel& voxel,
                                               int lane) {
  Voxel other{};
  other.segment.place = __shfl_sync(kFullWarp, voxel.segment.place, lane);
  other.segment.count = __shfl_sync(kFullWarp, voxel.segment.count, lane);
  other.row = __shfl_sync(kFullWarp, static_cast<uint32_t>(voxel.row), lane);
  other.stored = __shfl_sync(kFullWarp, voxel.stored, lane);
  if (args.center_relative) {
    other.cell.x = __shfl_sync(kFullWarp, voxel.cell.x, lane);
    other.cell.y = __shfl_sync(kFullWarp, voxel.cell.y, lane);
    other.cell.z = __shfl_sync(kFullWarp, voxel.cell.z, lane);
  }
  return other;
}

// One thread writes the index (16 bytes) or key of a row, and its number of stored points.
__device__ __forceinline__ void write_row(const VoxelizeArgs& args, const Voxel& voxel) {
  if (args.keys != nullptr) {
    args.row_keys[voxel.row] = static_cast<int64_t>(voxel.segment.key);
  } else {
    reinterpret_cast<int4*>(args.indices)[voxel.row] =
        make_int4(voxel.sample, voxel.cell.z, voxel.cell.y, voxel.cell.x);
  }
  args.num_points[voxel.row] = static_cast<int32_t>(voxel.stored);
}

template <class Real>
__device__ __forceinline__ Real cell_center(const VoxelGrid& grid, const Cell& cell, int axis) {
  return grid.center<Real>(axis, axis == 0 ? cell.x : axis == 1 ? cell.y : cell.z);
}

// Columns [first, first + n) of a point, n <= 4.
template <class Real>
__device__ __forceinline__ void load_four(const VoxelizeArgs& args, const VoxelWork& work,
                                          const Cell& cell, uint32_t point, int first, int n,
                                          Real (&values)[4]) {
  const CloudBatch& points = args.points;
  const int64_t at = int64_t{point} * points.row_stride + first;
  if (work.quads) {
    const float4 quad =
        *reinterpret_cast<const float4*>(static_cast<const float*>(points.data) + at);
    values[0] = quad.x;
    values[1] = quad.y;
    values[2] = quad.z;
    values[3] = quad.w;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < n) values[k] = load_as<Real>(points.data, points.dtype, at + k);
    }
  }
  if (args.center_relative && first == 0) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) values[axis] -= cell_center<Real>(args.grid, cell, axis);
  }
}

// Four neighboring values, the first of them with an index divisible by four.
__device__ __forceinline__ void store_four(void* data, DType dtype, int64_t at,
                                           const float (&values)[4]) {
  if (dtype == DType::kFloat) {
    float4 quad =
        make_float4(quiet(values[0]), quiet(values[1]), quiet(values[2]), quiet(values[3]));
    reinterpret_cast<float4*>(data)[at / 4] = quad;
  } else if (dtype == DType::kHalf) {
    ushort4 quad;
    quad.x = narrow<Half>(quiet(values[0])).bits;
    quad.y = narrow<Half>(quiet(values[1])).bits;
    quad.z = narrow<Half>(quiet(values[2])).bits;
    quad.w = narrow<Half>(quiet(values[3])).bits;
    reinterpret_cast<ushort4*>(data)[at / 4] = quad;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) store_as(data, dtype, at + k, quiet(values[k]));
  }
}

// Puts columns [first, first + n) of a point, n <= kChunkColumns, into a row of a tile.
template <class Real>
__device__ __forceinline__ void stage_point(const VoxelizeArgs& args, const VoxelWork& work,
                                            const Cell& cell, uint32_t point, int first, int n,
                                            Real* tile) {
#pragma unroll
  for (int k = 0; k < kChunkColumns; k += 4) {
    if (k >= n) break;
    Real values[4];
    load_four(args, work, cell, point, first + k, n - k, values);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (k + j < n) tile[k + j] = values[j];
    }
  }
}

template <class Real, ReduceKind kKind>
__device__ __forceinline__ void add_value(const VoxelizeArgs& args, Real value, uint32_t point,
                                          Real* sum, Best<Real>* best) {
  if (kKind == ReduceKind::kBest) {
    best->add(value, static_cast<int32_t>(point), args.reduce == VoxelReduce::kMin);
  } else {
    *sum += value;
  }
}

// Sum or best of `count` values of a column of a tile, in order.
template <class Real, ReduceKind kKind>
__device__ __forceinline__ void reduce_column(const VoxelizeArgs& args, const Real* column,
                                              const uint32_t* order, uint32_t count, Real* sum,
                                              Best<Real>* best) {
  Real total = 0;
#pragma unroll 4
  for (uint32_t r = 0; r < count; ++r) {
    add_value<Real, kKind>(args, column[r * kTileStride], kKind == ReduceKind::kBest ? order[r] : 0,
                           &total, best);
  }
  *sum = total;
}

// A warp reduces up to 32 points of `order`. Lane j gets the sum or best of column first + j.
template <class Real, ReduceKind kKind>
__device__ __forceinline__ void reduce_block(const VoxelizeArgs& args, const VoxelWork& work,
                                             const Cell& cell, const uint32_t* order,
                                             uint32_t count, int first, int n, Real* tile,
                                             Real* sum, Best<Real>* best) {
  const int lane = threadIdx.x % 32;
  if (static_cast<uint32_t>(lane) < count) {
    stage_point(args, work, cell, order[lane], first, n, tile + lane * kTileStride);
  }
  __syncwarp();
  if (lane < n) reduce_column<Real, kKind>(args, tile + lane, order, count, sum, best);
  __syncwarp();
}

template <class Real>
__device__ __forceinline__ void write_sum(const VoxelizeArgs& args, const Voxel& voxel,
                                          int64_t column, Real total) {
  if (args.reduce == VoxelReduce::kMean && voxel.stored > 0)
    total /= static_cast<Real>(voxel.stored);
  store_as(args.features, args.out_dtype, voxel.row * args.points.columns + column, quiet(total));
}
template <class Real>
__device__ __forceinline__ void write_best(const VoxelizeArgs& args, const Voxel& voxel,
                                           int64_t column, const Best<Real>& best) {
  const int64_t at = voxel.row * args.points.columns + column;
  store_as(args.features, args.out_dtype, at, quiet(best.value));
  if (args.arg != nullptr) args.arg[at] = best.point;
}

template <class Real, ReduceKind kKind>
__device__ __forceinline__ void write_value(const VoxelizeArgs& args, const Voxel& voxel,
                                            int64_t column, Real total, const Best<Real>& best) {
  if (kKind == ReduceKind::kBest) {
    write_best(args, voxel, column, best);
  } else {
    write_sum(args, voxel, column, total);
  }
}

// A warp writes the row of a voxel from any number of ordered points, 32 at a time.
template <class Real, ReduceKind kKind>
__device__ void reduce_voxel(const VoxelizeArgs& args, const VoxelWork& work, const Voxel& voxel,
                             const uint32_t* order, Real* tile) {
  const int lane = threadIdx.x % 32, columns = static_cast<int>(args.points.columns);
#pragma unroll 1
  for (int first = 0; first < columns; first += kChunkColumns) {
    const int n = columns - first < kChunkColumns ? columns - first : kChunkColumns;
    Real total = 0;
    Best<Real> best;
    if (voxel.stored <= 32) {
      reduce_block<Real, kKind>(args, work, voxel.cell, order, voxel.stored, first, n, tile, &total,
                                &best);
    } else {
      CascadeSum<Real> sum;
      for (uint32_t done = 0; done < voxel.stored; done += 32) {
        const uint32_t count = voxel.stored - done < 32 ? voxel.stored - done : 32;
        Real part = 0;
        reduce_block<Real, kKind>(args, work, voxel.cell, order + done, count, first, n, tile,
                                  &part, &best);
        if (count == 32) {
          sum.template add_block<1>(part);
        } else {
          sum.template add_rest<0>(part);
        }
      }
      total = sum.total();
    }
    if (lane < n) write_value<Real, kKind>(args, voxel, first + lane, total, best);
  }
}

// A warp writes the padded row of a voxel, [P, 4], one point per lane.
static __device__ void copy_voxel_quads(const VoxelizeArgs& args, const VoxelWork& work,
                                        const Voxel& voxel, const uint32_t* order) {
#pragma unroll 1
  for (int64_t slot = threadIdx.x % 32; slot < args.max_points; slot += 32) {
    float values[4] = {0, 0, 0, 0};
    if (slot < voxel.stored) load_four(args, work, voxel.cell, order[slot], 0, 4, values);
    store_four(args.features, args.out_dtype, 4 * (voxel.row * args.max_points + slot), values);
  }
}

// A warp writes the padded row of a voxel, [P, columns]: consecutive lanes write consecutive
// values.
template <class Real>
__device__ void copy_voxel(const VoxelizeArgs& args, const VoxelWork& work, const Voxel& voxel,
                           const uint32_t* order) {
  const int lane = threadIdx.x % 32, columns = static_cast<int>(args.points.columns);
  if constexpr (sizeof(Real) == sizeof(float)) {
    if (work.quads && columns == 4) return copy_voxel_quads(args, work, voxel, order);
  }
  const int64_t values = args.row_values(), base = voxel.row * values;
  const int slot_step = 32 / columns, column_step = 32 % columns;
  int64_t slot = lane / columns;
  int column = lane % columns;
  Real center[3] = {0, 0, 0};
  if (args.center_relative) {
    for (int axis = 0; axis < 3; ++axis)
      center[axis] = cell_center<Real>(args.grid, voxel.cell, axis);
  }
#pragma unroll 4
  for (int64_t k = lane; k < values; k += 32) {
    Real value = 0;
    if (slot < voxel.stored) {
      const int64_t at = int64_t{order[slot]} * args.points.row_stride + column;
      value = load_as<Real>(args.points.data, args.points.dtype, at);
      if (args.center_relative && column < 3) {
        value -= column == 0 ? center[0] : column == 1 ? center[1] : center[2];
      }
    }
    store_as(args.features, args.out_dtype, base + k, quiet(value));
    slot += slot_step;
    column += column_step;
    if (column >= columns) {
      column -= columns;
      ++slot;
    }
  }
}

}  // namespace torchvox
