// SPDX-License-Identifier: Apache-2.0
//
// What every algorithm of knn shares, on the host and on the device: which cloud a query searches,
// what is near, and what a row without a neighbour holds.
#pragma once

#include "csrc/kernels/neighbours/knn.h"
#include "csrc/kernels/sampling/fps_cloud.h"

namespace torchvox {

// One query and the points that it searches. Whatever lengths and offsets hold, the points lie in
// the cloud's block (ragged: among all points).
struct KnnQuery {
  int64_t row;  // of the outputs
  int64_t cloud;  // -1: it belongs to none
  int64_t at;  // element of `query` where it starts
  int64_t first;  // element of `points` where the cloud starts
  uint32_t points;  // of the cloud; 0 for a query that does not exist
  int64_t index_base;  // added to the index of a point

  static TORCHVOX_HD KnnQuery of(const KnnArgs& args, int64_t row) {
    KnnQuery query{row, -1, 0, 0, 0, 0};
    if (args.ragged) {
      query.cloud = cloud_of(args, row);
      query.at = row * args.query_stride;
      if (query.cloud < 0) return query;
      const int64_t begin = clamp_index(args.ptr[query.cloud], 0, args.capacity);
      const int64_t end = clamp_index(args.ptr[query.cloud + 1], begin, args.capacity);
      query.first = begin * args.point_stride;
      query.points = static_cast<uint32_t>(end - begin);
      query.index_base = args.local_index ? 0 : begin;
      return query;
    }
    query.cloud = row / args.rows;
    const int64_t in_cloud = row - query.cloud * args.rows;
    query.at = query.cloud * args.query_cloud_stride + in_cloud * args.query_stride;
    query.first = query.cloud * args.cloud_stride;
    const bool exists = !args.query_lengths.given() || in_cloud < args.query_lengths[query.cloud];
    const int64_t length = args.lengths.given()
        ? clamp_index(args.lengths[query.cloud], 0, args.capacity)
        : args.capacity;
    query.points = exists ? static_cast<uint32_t>(length) : 0;
    return query;
  }

 private:
  // The last cloud that begins at or before the query, if it reaches that far.
  static TORCHVOX_HD int64_t cloud_of(const KnnArgs& args, int64_t row) {
    int64_t low = 0, high = args.clouds;  // the first cloud that begins after it is in [low, high]
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (args.query_ptr[middle] <= row) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low > 0 && row < args.query_ptr[low] ? low - 1 : -1;
  }
};

// Of points of any type and number of axes, straight from memory.
template <class T>
TORCHVOX_HD bool is_finite_row(const T* row, int64_t dims) {
  for (int64_t axis = 0; axis < dims; ++axis) {
    if (!is_finite(widen(row[axis]))) return false;
  }
  return true;
}

template <class T>
TORCHVOX_HD compute_t<T> row_distance(const KnnArgs& args, const T* p, const T* q) {
  using C = compute_t<T>;
  C sum = 0;
  if (args.manhattan) {
    for (int64_t axis = 0; axis < args.dims; ++axis)
      sum += std::fabs(widen(p[axis]) - widen(q[axis]));
  } else if (args.order == DistOrder::kPn2) {
    const C dx = widen(p[0]) - widen(q[0]), dy = widen(p[1]) - widen(q[1]),
            dz = widen(p[2]) - widen(q[2]);
    sum = fma_rn(dz, dz, fma_rn(dx, dx, dy * dy));
  } else {
    for (int64_t axis = 0; axis < args.dims; ++axis) {
      const C d = widen(p[axis]) - widen(q[axis]);
      sum = fma_rn(d, d, sum);
    }
  }
  return sum;
}

// A slot without a neighbour. No distance orders behind it, because its index is the last.
inline constexpr uint32_t kNoNeighbour = 0xffffffffu;

template <class C>
TORCHVOX_HD C no_distance() {
  return static_cast<C>(INFINITY);
}

template <class C>
TORCHVOX_HD void write_neighbour(const KnnArgs& args, const KnnQuery& query, int64_t slot, C dist2,
                                 uint32_t point) {
  const int64_t at = query.row * args.k + slot;
  static_cast<C*>(args.dist2)[at] = dist2;
  args.idx[at] = point == kNoNeighbour ? -1 : static_cast<int32_t>(point + query.index_base);
}

// Points of at most three axes in fp32, compared by their squared distance, have fast kernels.
inline bool is_fast(const KnnArgs& args) {
  return args.dtype != DType::kDouble && args.dims <= 3 && !args.manhattan;
}

}  // namespace torchvox
