// SPDX-License-Identifier: Apache-2.0
//
// Entry of ball_query. Plans, chosen in plan.cpp: scan.cu passes over the points of a cloud in
// index order, up to the k-th hit; cells bins the points into a hash grid (plan.h, ball_query.cu)
// and searches the cells around a query (cells_query.cu). rule.h is the rule of all, kernels.cuh
// what the CUDA files share. CPU: ball_query_cpu.cpp, over the planes of planes_cpu.h.
#pragma once

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

// One ball around every query. A point at d is a hit when d <= outer and not core < d < inner.
struct BallRadius {
  double outer = -1.0;
  double inner = 0.0;
  int64_t k = 0;
  int64_t slot = 0;  // of its first hit, in a row of the outputs
};
inline constexpr int kMostRadii = 4;

// The bounds of a ball in the arithmetic of the points. r2 wins over r where it is given.
TORCHVOX_EXPORT BallRadius ball_radius(DType dtype, double radius, const double* radius2,
                                       double min_radius, double core_dist2, bool closed);

// Cloud b of `query` searches cloud b of `points`.
struct BallQueryArgs {
  CloudBatch points, query;  // of one layout, dtype and number of columns
  bool local_index = true;  // packed: indices count from the cloud's first point

  DistOrder order = DistOrder::kPn2;  // kLoop unless there are 3 columns
  double core = 0.0;  // closer points are hits of every ball; negative: none are
  BallRadius radius[kMostRadii];
  int radii = 1;
  bool pad = false;  // fill="pad": -1 past the hits; else the first hit, 0 where there is none

  int64_t slots = 0;  // of a row of idx and dist2
  int64_t counts = 1;  // of a row of count
  void* dist2 = nullptr;  // [rows, slots], double for double points, else float; may be null
  int32_t* idx = nullptr;  // [rows, slots]
  int32_t* count = nullptr;  // [rows, counts]

  TORCHVOX_HD int64_t rows() const { return query.total_rows(); }
  bool generic() const { return points.dtype == DType::kDouble || points.columns > 3; }
};

TORCHVOX_KERNEL(BallQueryArgs);

}  // namespace torchvox
