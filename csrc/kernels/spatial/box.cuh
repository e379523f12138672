// SPDX-License-Identifier: Apache-2.0
//
// A box around points of three axes, in registers, and how near any of them can be.
#pragma once

#include "csrc/kernels/core/warp.cuh"
#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

struct PointBox {
  float low_a, low_b, low_c, high_a, high_b, high_c;

  // At most the dist2 that any point in the box has to q, rounding included.
  __device__ __forceinline__ float bound(const float4& q) const {
    return dist2(gap(low_a, high_a, q.x), gap(low_b, high_b, q.y), gap(low_c, high_c, q.z));
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

}  // namespace torchvox
