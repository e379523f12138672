// SPDX-License-Identifier: Apache-2.0
//
// Entry of knn, and the rule of all its kernels. scan.cu measures every point; tiles.cu visits the
// tiles of a spatial order, nearest first, after knn.cu has prepared order, boxes and queries;
// select.cu handles all other calls. list.cuh is a warp's list of neighbors. CPU, and the choice of
// the kernel: knn_cpu.cpp.
#pragma once

#include "csrc/kernels/core/entry.h"
#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/spatial/candidates.h"

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

inline const PlanOverride knn_kernel_plan{"knn_kernel"};  // a KnnKernel, if it can take the call
inline const PlanOverride knn_order_plan{"knn_order"};  // CUDA: 0 one block per cloud, 1 one sort
inline const PlanOverride knn_cpu_plan{"knn_cpu"};  // see run_vectorized()

struct KnnCloud : CloudRows {
  int64_t index_base;  // added to the index of a point

  static TORCHVOX_HD KnnCloud of(const KnnArgs& args, int64_t b) {
    const CloudRows rows = args.points.cloud(b);
    return {rows, args.points.packed && !args.local_index ? rows.first : 0};
  }
};

// The distance of rows of any dtype and number of axes.
template <class T>
TORCHVOX_HD compute_t<T> row_distance(const KnnArgs& args, const T* p, const T* q) {
  if (!args.manhattan) return dist2_rows(args.order, args.points.columns, p, q);
  compute_t<T> sum = 0;
  for (int64_t axis = 0; axis < args.points.columns; ++axis) {
    sum += std::fabs(widen(p[axis]) - widen(q[axis]));
  }
  return sum;
}

// A point or query for the fast paths: fp32 after widening, at most three axes.
TORCHVOX_HD Point3 load_axes(const KnnArgs& args, const void* rows, int64_t at) {
  return load_axes(args.points, args.order, rows, at);
}

// Writes neighbor `slot` of a row, or that there is none. `index_base` is that of the cloud.
template <class C>
TORCHVOX_HD void write_neighbor(const KnnArgs& args, int64_t row, int64_t slot, C dist2,
                                uint32_t point, int64_t index_base) {
  const int64_t at = row * args.k + slot;
  static_cast<C*>(args.dist2)[at] = dist2;
  args.idx[at] = static_cast<int32_t>(point + index_base);
}
template <class C>
TORCHVOX_HD void write_none(const KnnArgs& args, int64_t row, int64_t slot) {
  const int64_t at = row * args.k + slot;
  static_cast<C*>(args.dist2)[at] = static_cast<C>(INFINITY);
  args.idx[at] = -1;
}

// The points to put in spatial order.
inline CandidatePoints points_to_order(const KnnArgs& args) { return {args.points, args.order}; }

// Whether the fast kernels take a call: at most three axes, not double.
inline bool is_fast(const KnnArgs& args) {
  return args.points.dtype != DType::kDouble && args.points.columns <= 3;
}

// Calls body with the norm as a constant.
template <class Body>
auto with_norm(const KnnArgs& args, Body&& body) {
  return args.manhattan ? body(std::integral_constant<int, 1>{})
                        : body(std::integral_constant<int, 2>{});
}

// How a call runs, from sizes that the host knows. No plan changes a result.
enum class KnnKernel : int64_t {
  kScan,  // measures every point; CUDA: one warp per few queries
  kTiles,  // visits those tiles of a spatial order that may hold a neighbor
  kSelect  // CUDA: one block per query, for all other calls
};

// CUDA: neighbors that the registers of a thread hold, and those of a warp; more take kSelect.
inline constexpr int64_t kFewListed = 4;
inline constexpr int64_t kMostListed = 128;

KnnKernel choose_knn_kernel(const KnnArgs& args, const Target& target);

}  // namespace torchvox
