// SPDX-License-Identifier: Apache-2.0
//
// Entry of knn. Kernels, chosen in plan.cpp: scan.cu measures every point; tiles.cu visits the
// tiles of a spatial order, nearest first, after prepare.cu has made order, boxes and queries;
// select.cu takes whatever those do not. common.h is the rule of all, list.cuh a warp's list of
// neighbors. CPU: knn_cpu.cpp, over the tiles of tiles_cpu.h.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/packed_points.h"
#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

// The k nearest points of its cloud for every query. Batched: `clouds` blocks of `capacity` points
// and of `rows` queries each. Ragged: `capacity` points and `rows` queries in all, cloud b owns the
// points [ptr[b], ptr[b + 1]) and the queries [query_ptr[b], query_ptr[b + 1]). Lengths and offsets
// are read on the device and never trusted.
struct KnnArgs {
  const void* points = nullptr;  // unit column stride
  const void* query = nullptr;  // unit column stride
  DType dtype = DType::kFloat;  // of both
  bool ragged = false;
  int64_t clouds = 0;
  int64_t capacity = 0;  // below 2^31
  int64_t rows = 0;
  int64_t dims = 3;
  int64_t cloud_stride = 0, query_cloud_stride = 0;  // in elements; batched only
  int64_t point_stride = 0, query_stride = 0;  // in elements

  IndexArray lengths, query_lengths;  // [clouds], batched only
  IndexArray ptr, query_ptr;  // [clouds + 1], ragged only
  bool local_index = true;  // ragged: indices count from the cloud's first point

  int64_t k = 0;
  DistOrder order = DistOrder::kPn2;  // kLoop unless dims == 3
  bool manhattan = false;  // norm 1: (|dx| + |dy|) + |dz|

  void* dist2 = nullptr;  // [clouds, rows, k] or [rows, k]; double for double points, else float
  int32_t* idx = nullptr;  // as dist2

  TORCHVOX_HD int64_t queries() const { return ragged ? rows : clouds * rows; }
};

TORCHVOX_KERNEL(KnnArgs);

}  // namespace torchvox
