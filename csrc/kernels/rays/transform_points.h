// SPDX-License-Identifier: Apache-2.0
//
// Entry of transform_points, and its arithmetic.
#pragma once

#include "csrc/kernels/core/map.h"

namespace torchvox {

// Points times their poses; NaN for a point whose pose_index is outside [0, pose_rows).
struct TransformPointsArgs {
  CloudBatch points;  // packed
  const void* poses = nullptr;  // [pose_rows, 3, 4], contiguous
  DType pose_type = DType::kDouble;
  int64_t pose_rows = 0;
  IndexArray pose_index;  // [points.rows]; not given: 0
  double* out = nullptr;  // [points.rows, 3]
};

// Row `axis` of a pose times a point, ((r0 x + r1 y) + r2 z) + t in fp64.
TORCHVOX_HD double transform(const double row[4], const double p[3]) {
  return row[0] * p[0] + row[1] * p[1] + row[2] * p[2] + row[3];
}

TORCHVOX_HD void transform_point(const TransformPointsArgs& args, int64_t i) {
  const int64_t pose = args.pose_index.given() ? args.pose_index[i] : 0;
  const bool known = pose >= 0 && pose < args.pose_rows;
  double p[3];
  for (int axis = 0; axis < 3; ++axis) {
    p[axis] =
        load_as<double>(args.points.data, args.points.dtype, i * args.points.row_stride + axis);
  }
  for (int axis = 0; axis < 3; ++axis) {
    double row[4] = {};
    for (int k = 0; k < 4 && known; ++k) {
      row[k] = load_as<double>(args.poses, args.pose_type, pose * 12 + axis * 4 + k);
    }
    const double q = known ? transform(row, p) : bit_cast<double>(uint64_t{0x7ff8000000000000u});
    args.out[3 * i + axis] = quiet(q);
  }
}
TORCHVOX_MAP(TransformPointsArgs, transform_point, args.points.rows, 4096, 256);

}  // namespace torchvox
