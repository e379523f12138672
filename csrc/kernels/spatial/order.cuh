// SPDX-License-Identifier: Apache-2.0
//
// Places on the Hilbert curve of a cloud.
#pragma once

#include "csrc/kernels/sampling/fps/kernels.cuh"
#include "csrc/kernels/spatial/curves.h"

namespace torchvox {

// Place of a point on the curve through the cube of its cloud; of any other point, that of a cell
// on the cube's side.
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
