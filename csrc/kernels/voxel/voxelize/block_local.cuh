// SPDX-License-Identifier: Apache-2.0
//
// The part of the fused kernel after the voxels have their ids: the rows of the voxels that begin
// in a block, from the lists of their points.
#pragma once

#include <cstdint>

#include "csrc/kernels/voxel/voxelize/chunk.cuh"
#include "csrc/kernels/voxel/voxelize/reduce.cuh"

namespace torchvox {

// The row of voxel k of the block, and its index; or nothing, then the row is -1.
__device__ __forceinline__ Voxel begin_row(const VoxelizeArgs& args, const VoxelWork& work,
                                           const Chunk& chunk, const FusedShared& shared,
                                           uint32_t k, bool writes) {
  Voxel voxel{};
  voxel.row = -1;
  if (k >= shared.voxels) return voxel;
  const VoxelSegment segment = load_whole(&chunk.own[k]);
  const int64_t row = work.row_of_voxel(args, shared.first_id + k, segment.key);
  if (row < 0 || row >= args.capacity()) return voxel;
  voxel = make_voxel(args, work, segment, row, true);
  if (writes) write_row(args, voxel);
  return voxel;
}

// For all arguments: four voxels at a time by a warp.
template <class Real, ReduceKind kKind>
__device__ void reduce_own(const VoxelizeArgs& args, const VoxelWork& work, const Chunk& chunk,
                           const FusedShared& shared, WarpShared<Real>& warp_shared) {
  const uint32_t group = threadIdx.x / kSmallVoxel;
  const uint32_t warp_first = threadIdx.x / 32 * (32 / kSmallVoxel);
#pragma unroll 1
  for (uint32_t first = warp_first; first < shared.voxels; first += blockDim.x / kSmallVoxel) {
    const uint32_t k = first - warp_first + group;
    const Voxel voxel = begin_row(args, work, chunk, shared, k, threadIdx.x % kSmallVoxel == 0);
    const uint32_t* const points = work.lists + int64_t{voxel.segment.place} * kSmallVoxel;
    const uint32_t n = voxel.segment.count <= kSmallVoxel ? voxel.segment.count : 0;
    rank_and_reduce<Real, kKind>(args, work, voxel, points, n, kSmallVoxel, warp_shared);
  }
}

// The points of a small voxel, in order, by one lane; kNone32 past the last one.
struct SmallOrder {
  uint32_t point[kSmallVoxel];

  __device__ SmallOrder(const uint32_t* list, uint32_t n) {
    const uint4* const quads = reinterpret_cast<const uint4*>(list);
    const uint4 none = make_uint4(kNone32, kNone32, kNone32, kNone32);
    const uint4 low = n > 0 ? quads[0] : none;
    const uint4 high = n > 4 ? quads[1] : none;
    const uint32_t all[kSmallVoxel] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < kSmallVoxel; ++i) {
      point[i] = static_cast<uint32_t>(i) < n ? all[i] : kNone32;
    }
#pragma unroll
    for (int run = 2; run <= kSmallVoxel; run *= 2) {
#pragma unroll
      for (int distance = run / 2; distance > 0; distance /= 2) {
#pragma unroll
        for (int i = 0; i < kSmallVoxel; ++i) {
          const int j = i ^ distance;
          if (j < i) continue;
          const uint32_t a = point[i], b = point[j];
          const bool ascending = (i & run) == 0;
          point[i] = ascending ? min(a, b) : max(a, b);
          point[j] = ascending ? max(a, b) : min(a, b);
        }
      }
    }
  }
};

// The usual row of a point, in registers.
struct Quad {
  float value[4];

  __device__ static Quad load(const VoxelizeArgs& args, uint32_t point) {
    const float4 quad = __ldg(static_cast<const float4*>(args.points.data) + point);
    return {{quad.x, quad.y, quad.z, quad.w}};
  }
};

// Sum of the points of a small voxel, by one lane: four of them on their way at once.
__device__ __forceinline__ void sum_small(const VoxelizeArgs& args, const Voxel& voxel,
                                          const SmallOrder& order) {
  Quad total{};
#pragma unroll
  for (int first = 0; first < kSmallVoxel; first += 4) {
    Quad points[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r < voxel.stored) points[r] = Quad::load(args, order.point[first + r]);
    }
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (first + r >= voxel.stored) continue;
#pragma unroll
      for (int c = 0; c < 4; ++c) total.value[c] += points[r].value[c];
    }
  }
  if (args.reduce == VoxelReduce::kMean && voxel.stored > 0) {
#pragma unroll
    for (int c = 0; c < 4; ++c) total.value[c] /= static_cast<float>(voxel.stored);
  }
  store_four(args.features, args.out_dtype, 4 * voxel.row, total.value);
}

// What the threads of a block leave for each other about up to as many small voxels.
struct PaddedRows {
  uint32_t* stored;  // [threads]; kNone32: not a small voxel
  uint32_t* order;  // [threads, kSmallVoxel]

  __device__ explicit PaddedRows(const Chunk& chunk)
      : stored(reinterpret_cast<uint32_t*>(chunk.rest)), order(stored + blockDim.x) {}
  static_assert((1 + kSmallVoxel) * 32 * sizeof(uint32_t) <= sizeof(WarpShared<float>), "room");
};

// The padded rows of `rows` voxels that follow each other from row `base` on, by a block: threads
// write neighbouring points all the way. Rows of crowded voxels are left out.
__device__ inline void copy_rows(const VoxelizeArgs& args, const PaddedRows& shared, int64_t base,
                                 uint32_t rows) {
  constexpr uint32_t kAhead = 4;  // points on their way at once
  const uint32_t width = static_cast<uint32_t>(args.max_points);
#pragma unroll 1
  for (uint32_t first = threadIdx.x; first < rows * width; first += kAhead * blockDim.x) {
    Quad value[kAhead];
    bool writes[kAhead];
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a) {
      const uint32_t at = first + a * blockDim.x;
      const uint32_t k = at / width;
      const uint32_t slot = at - k * width;
      const uint32_t stored = k < rows ? shared.stored[k] : kNone32;
      writes[a] = stored != kNone32;
      value[a] = {};
      if (writes[a] && slot < stored) {
        value[a] = Quad::load(args, shared.order[kSmallVoxel * k + slot]);
      }
    }
#pragma unroll
    for (uint32_t a = 0; a < kAhead; ++a) {
      const int64_t at = base * width + first + a * blockDim.x;
      if (writes[a]) store_four(args.features, args.out_dtype, 4 * at, value[a].value);
    }
  }
}

// For the usual arguments, see assume_common(): a lane a voxel.
template <ReduceKind kKind>
__device__ void reduce_own_quads(const VoxelizeArgs& args, const VoxelWork& work,
                                 const Chunk& chunk, const FusedShared& shared) {
#pragma unroll 1
  for (uint32_t first = 0; first < shared.voxels; first += blockDim.x) {
    const Voxel voxel = begin_row(args, work, chunk, shared, first + threadIdx.x, true);
    const bool small = voxel.row >= 0 && voxel.segment.count <= kSmallVoxel;
    const uint32_t n = small ? voxel.segment.count : 0;
    const SmallOrder order(work.lists + int64_t{voxel.segment.place} * kSmallVoxel, n);
    if constexpr (kKind == ReduceKind::kCopy) {
      const PaddedRows padded(chunk);
      padded.stored[threadIdx.x] = small ? voxel.stored : kNone32;
#pragma unroll
      for (int r = 0; r < kSmallVoxel; ++r) {
        padded.order[kSmallVoxel * threadIdx.x + r] = order.point[r];
      }
      const int rows = __syncthreads_count(voxel.row >= 0);
      copy_rows(args, padded, int64_t{shared.first_id} + first, static_cast<uint32_t>(rows));
      __syncthreads();
    } else if (small) {
      sum_small(args, voxel, order);
    }
  }
}

}  // namespace torchvox
