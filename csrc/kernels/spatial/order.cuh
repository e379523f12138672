// SPDX-License-Identifier: Apache-2.0
//
// Clouds in an order that keeps neighbors together: by their places on a Hilbert curve.
#pragma once

#include "csrc/kernels/core/launch.cuh"
#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/spatial/candidates.h"
#include "csrc/kernels/spatial/curves.h"
#include "csrc/kernels/spatial/radix_sort.h"

namespace torchvox {

// A box around points of three axes, in registers.
struct PointBox {
  float low_a, low_b, low_c, high_a, high_b, high_c;

  // A lower bound of the distance of q to any point in the box, rounding included.
  template <int kNorm = 2>
  __device__ __forceinline__ float bound(const float4& q) const {
    return norm_of<kNorm>(gap(low_a, high_a, q.x), gap(low_b, high_b, q.y),
                          gap(low_c, high_c, q.z));
  }
  __device__ __forceinline__ void extend(const float4& p) {
    low_a = fminf(low_a, p.x);
    low_b = fminf(low_b, p.y);
    low_c = fminf(low_c, p.z);
    high_a = fmaxf(high_a, p.x);
    high_b = fmaxf(high_b, p.y);
    high_c = fmaxf(high_c, p.z);
  }
  __device__ static PointBox empty() {
    const float infinity = __int_as_float(0x7f800000);
    return {infinity, infinity, infinity, -infinity, -infinity, -infinity};
  }
};

// Smallest box around those of a warp's lanes.
__device__ __forceinline__ PointBox warp_box(const PointBox& box) {
  return {from_ordered_bits(warp_min(ordered_bits(box.low_a))),
          from_ordered_bits(warp_min(ordered_bits(box.low_b))),
          from_ordered_bits(warp_min(ordered_bits(box.low_c))),
          from_ordered_bits(warp_max(ordered_bits(box.high_a))),
          from_ordered_bits(warp_max(ordered_bits(box.high_b))),
          from_ordered_bits(warp_max(ordered_bits(box.high_c)))};
}

// Summary of a cloud after one pass over it. Zero-filled memory is the neutral element: every field
// only grows.
struct CloudSummary {
  uint32_t low[3];  // ~ordered_bits of the smallest coordinate of a candidate, summation order
  uint32_t high[3];  // ordered_bits of the largest
  uint32_t first;  // ~code of the first candidate in tie order
  uint32_t candidates;

  __device__ __forceinline__ void include(const Point3& p) {
    const float axes[3] = {p.a, p.b, p.c};
    for (int axis = 0; axis < 3; ++axis) {
      const uint32_t bits = ordered_bits(axes[axis]);
      low[axis] = max(low[axis], ~bits);
      high[axis] = max(high[axis], bits);
    }
    ++candidates;
  }
};

// The clouds [first_cloud, first_cloud + clouds) in an order that keeps neighbors together.
// Positions count from the first point of first_cloud.
struct SpatialOrder {
  int64_t first_cloud = 0, clouds = 0, points = 0;
  int64_t above = -1;  // clouds with at most this many tie codes are skipped
  int axis_bits = 0;  // bits per axis of the places on the curve, the low bits of the sorted keys
  CloudSummary* summaries = nullptr;  // [clouds]
  float4* sorted = nullptr;  // [points] a, b, c, code; the candidates of a cloud come first in it
  SortBuffers sort;

  // For `clouds` clouds at a time.
  SpatialOrder(const CandidatePoints& args, int64_t clouds, int64_t above, Workspace& workspace);
};

// Fills `summaries` and `sorted`. Speed depends on the order, results never do.
cudaError_t make_spatial_order(const CandidatePoints& args, SpatialOrder& order,
                               cudaStream_t stream);

// Place of a point on the curve through the cube of its cloud; points outside the cube count as in
// the nearest cell of it.
__device__ __forceinline__ uint32_t curve_place(const Point3& point, const CloudSummary& summary,
                                                int axis_bits) {
  float low[3], high[3];
  for (int axis = 0; axis < 3; ++axis) {
    low[axis] = from_ordered_bits(~summary.low[axis]);
    high[axis] = from_ordered_bits(summary.high[axis]);
  }
  const uint32_t cells = 1u << axis_bits;
  const float scale = scale_of(low, high, cells);
  return hilbert_code(cell_of(point.a, low[0], scale, cells),
                      cell_of(point.b, low[1], scale, cells),
                      cell_of(point.c, low[2], scale, cells), axis_bits);
}

}  // namespace torchvox
