// SPDX-License-Identifier: Apache-2.0
//
// From ordered points to a row of `features`.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/kernels/voxel/voxel_work.cuh"
#include "csrc/kernels/voxel/warp_order.cuh"

namespace torchvox {

enum class ReduceKind { kNothing, kCopy, kSum, kBest };

inline constexpr int kChunkColumns = 8;  // columns of a point that a lane reads at once
inline constexpr int kTileStride = kChunkColumns + 1;  // free of bank conflicts

struct Voxel {
  VoxelSegment segment;
  int64_t row;
  int64_t sample;
  Cell cell;
  uint32_t stored;
};

__device__ __forceinline__ Voxel make_voxel(const VoxelizeArgs& args, const VoxelSegment& segment,
                                            int64_t row) {
  Voxel voxel;
  voxel.segment = segment;
  voxel.row = row;
  voxel.cell = args.grid.cell_of(segment.key, &voxel.sample);
  voxel.stored = static_cast<uint32_t>(args.stored(segment.count));
  return voxel;
}

// One 16-byte store and one of 4, by one thread.
__device__ __forceinline__ void write_row(const VoxelizeArgs& args, const Voxel& voxel) {
  reinterpret_cast<int4*>(args.indices)[voxel.row] =
      make_int4(static_cast<int>(voxel.sample), voxel.cell.z, voxel.cell.y, voxel.cell.x);
  args.num_points[voxel.row] = static_cast<int32_t>(voxel.stored);
}

template <class Real>
__device__ __forceinline__ Real cell_center(const VoxelGrid& grid, const Cell& cell, int axis) {
  return grid.center<Real>(axis, axis == 0 ? cell.x : axis == 1 ? cell.y : cell.z);
}

// Columns [first, first + n) of a point, n <= kChunkColumns.
template <class Real>
__device__ __forceinline__ void load_columns(const VoxelizeArgs& args, const Cell& cell,
                                             uint32_t point, int first, int n,
                                             Real (&values)[kChunkColumns]) {
  const PackedPoints& points = args.points;
  const int64_t at = int64_t{point} * points.row_stride + first;
  const bool vector = sizeof(Real) == 4 && points.dtype == DType::kFloat && n % 4 == 0 &&
      points.row_stride % 4 == 0 && reinterpret_cast<uintptr_t>(points.data) % 16 == 0;
  if (vector) {
    const float4* quads =
        reinterpret_cast<const float4*>(static_cast<const float*>(points.data) + at);
#pragma unroll
    for (int k = 0; k < kChunkColumns; k += 4) {
      if (k < n) {
        const float4 quad = quads[k / 4];
        values[k] = quad.x;
        values[k + 1] = quad.y;
        values[k + 2] = quad.z;
        values[k + 3] = quad.w;
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < kChunkColumns; ++k) {
      if (k < n) values[k] = load_as<Real>(points.data, points.dtype, at + k);
    }
  }
  if (args.center_relative && first == 0) {
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) values[axis] -= cell_center<Real>(args.grid, cell, axis);
  }
}

// Sum or best of up to 32 points, one a lane (kNone32: none), for groups of kLanes lanes. Lane j of
// a group ends with the result of column first + j. Points go through shared memory, so that the
// additions are one short loop in rank order.
template <class Real, ReduceKind kKind, int kLanes>
__device__ __forceinline__ void reduce_block(const VoxelizeArgs& args, const Cell& cell,
                                             const uint32_t* order, uint32_t count, int first,
                                             int n, Real* tile, Real* sum, Best<Real>* best) {
  const int lane = threadIdx.x % 32;
  const int j = lane % kLanes;
  if (static_cast<uint32_t>(j) < count) {
    Real values[kChunkColumns];
    load_columns(args, cell, order[j], first, n, values);
#pragma unroll
    for (int k = 0; k < kChunkColumns; ++k) {
      if (k < n) tile[lane * kTileStride + k] = values[k];
    }
  }
  __syncwarp();
  if (j < n) {
    const Real* column = tile + (lane - j) * kTileStride + j;
    Real total = 0;
    for (uint32_t r = 0; r < count; ++r) {
      if (kKind == ReduceKind::kBest) {
        best->add(column[r * kTileStride], static_cast<int32_t>(order[r]),
                  args.reduce == VoxelReduce::kMin);
      } else {
        total += column[r * kTileStride];
      }
    }
    *sum = total;
  }
  __syncwarp();
}

template <class Real>
__device__ __forceinline__ void write_sum(const VoxelizeArgs& args, const Voxel& voxel,
                                          int64_t column, Real total) {
  if (args.reduce == VoxelReduce::kMean && voxel.stored > 0)
    total /= static_cast<Real>(voxel.stored);
  store_as(args.features, args.out_dtype, voxel.row * args.points.columns + column, total);
}
template <class Real>
__device__ __forceinline__ void write_best(const VoxelizeArgs& args, const Voxel& voxel,
                                           int64_t column, const Best<Real>& best) {
  const int64_t at = voxel.row * args.points.columns + column;
  store_as(args.features, args.out_dtype, at, best.value);
  if (args.arg != nullptr) args.arg[at] = best.point;
}

// The row of a voxel by a group of kLanes lanes. `voxel.stored` is 0 for a group with nothing to
// do, which then also has `active` false. With 32 lanes any number of points, 32 at a time.
template <class Real, ReduceKind kKind, int kLanes>
__device__ void reduce_voxel(const VoxelizeArgs& args, const Voxel& voxel, const uint32_t* order,
                             bool active, Real* tile) {
  const int j = threadIdx.x % kLanes;
  const int columns = static_cast<int>(args.points.columns);
  for (int first = 0; first < columns; first += kChunkColumns) {
    const int n = columns - first < kChunkColumns ? columns - first : kChunkColumns;
    CascadeSum<Real> sum;
    Best<Real> best;
    uint32_t done = 0;
    do {
      const uint32_t rest = voxel.stored - done;
      const uint32_t count = rest < kLanes ? rest : kLanes;
      Real part = 0;
      reduce_block<Real, kKind, kLanes>(args, voxel.cell, order + done, count, first, n, tile,
                                        &part, &best);
      if (count == 32) {
        sum.template add_block<1>(part);
      } else {
        sum.template add_rest<0>(part);
      }
      done += kLanes;
    } while (kLanes == 32 && done < voxel.stored);
    if (active && j < n) {
      if (kKind == ReduceKind::kBest) {
        write_best(args, voxel, first + j, best);
      } else {
        write_sum(args, voxel, first + j, sum.total());
      }
    }
  }
}

// The padded row of a voxel, [P, columns], by a warp: consecutive lanes write consecutive values.
template <class Real>
__device__ void copy_voxel(const VoxelizeArgs& args, const Voxel& voxel, const uint32_t* order) {
  const int lane = threadIdx.x % 32;
  const int columns = static_cast<int>(args.points.columns);
  const int64_t values = args.row_values();
  const int64_t base = voxel.row * values;
  const int slot_step = 32 / columns;
  const int column_step = 32 % columns;
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
    store_as(args.features, args.out_dtype, base + k, value);
    slot += slot_step;
    column += column_step;
    if (column >= columns) {
      column -= columns;
      ++slot;
    }
  }
}

}  // namespace torchvox
