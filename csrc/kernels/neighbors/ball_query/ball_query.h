// SPDX-License-Identifier: Apache-2.0
//
// Entry of ball_query. Plans, chosen in plan.cpp: scan.cu passes over the points of a cloud in
// index order, up to the k-th hit; cells bins the points into a hash grid (plan.h, ball_query.cu)
// and searches the cells around a query (cells_query.cu). rule.h is the rule of all, kernels.cuh
// what the CUDA files share. CPU: ball_query_cpu.cpp, over the planes of planes_cpu.h.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/packed_points.h"
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

// Batched: `clouds` blocks of `capacity` points and of `queries` queries each. Ragged: `capacity`
// packed points and `queries` packed queries in all; cloud b owns the points [ptr[b], ptr[b + 1])
// and the queries [query_ptr[b], query_ptr[b + 1]). Lengths and offsets are read on the device and
// never trusted.
struct BallQueryArgs {
  const void* points = nullptr;  // unit column stride, as query
  const void* query = nullptr;
  DType dtype = DType::kFloat;  // of both
  bool ragged = false;
  int64_t clouds = 0;
  int64_t capacity = 0;  // below 2^31
  int64_t queries = 0;
  int64_t dims = 3;
  int64_t cloud_stride = 0;  // in elements, as all strides; batched only
  int64_t point_stride = 0;
  int64_t query_cloud_stride = 0;  // batched only
  int64_t query_stride = 0;

  IndexArray lengths;  // [clouds], batched only
  IndexArray query_lengths;  // [clouds], batched only
  IndexArray ptr;  // [clouds + 1], ragged only
  IndexArray query_ptr;  // [clouds + 1], ragged only
  bool local_index = true;  // ragged: indices count from the cloud's first point

  DistOrder order = DistOrder::kPn2;  // kLoop unless dims == 3
  double core = 0.0;  // closer points are hits of every ball; negative: none are
  BallRadius radius[kMostRadii];
  int radii = 1;
  bool pad = false;  // fill="pad": -1 past the hits; else the first hit, 0 where there is none

  int64_t slots = 0;  // of a row of idx and dist2
  int64_t counts = 1;  // of a row of count
  void* dist2 = nullptr;  // [rows, slots], double for double points, else float; may be null
  int32_t* idx = nullptr;  // [rows, slots]
  int32_t* count = nullptr;  // [rows, counts]

  TORCHVOX_HD int64_t rows() const { return ragged ? queries : clouds * queries; }
  TORCHVOX_HD int64_t total_points() const { return ragged ? capacity : clouds * capacity; }
  bool generic() const { return dtype == DType::kDouble || dims > 3; }
};

TORCHVOX_KERNEL(BallQueryArgs);

}  // namespace torchvox
