// SPDX-License-Identifier: Apache-2.0
//
// Entry of knn. Kernels, chosen in plan.cpp: scan.cu measures every point; tiles.cu visits the
// tiles of a spatial order, nearest first, after prepare.cu has made order, boxes and queries;
// select.cu takes whatever those do not. common.h is the rule of all, list.cuh a warp's list of
// neighbors. CPU: knn_cpu.cpp, over the tiles of tiles_cpu.h.
#pragma once

#include "csrc/kernels/core/cloud_batch.h"
#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/spatial/distance.h"

namespace torchvox {

// The k nearest points of its cloud for every query: cloud b of `query` searches cloud b of
// `points`.
struct KnnArgs {
  CloudBatch points, query;  // of one layout, dtype and number of columns
  bool local_index = true;  // packed: indices count from the cloud's first point

  int64_t k = 0;
  DistOrder order = DistOrder::kPn2;  // kLoop unless there are 3 columns
  bool manhattan = false;  // norm 1: (|dx| + |dy|) + |dz|

  void* dist2 = nullptr;  // [query rows, k]; double for double points, else float
  int32_t* idx = nullptr;  // as dist2

  TORCHVOX_HD int64_t queries() const { return query.total_rows(); }
};

TORCHVOX_KERNEL(KnnArgs);

}  // namespace torchvox
