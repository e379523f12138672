// SPDX-License-Identifier: Apache-2.0
//
// What every algorithm of knn shares, on the host and on the device: which cloud a query searches,
// what is near, and what a row without a neighbor holds.
#pragma once

#include "csrc/kernels/neighbors/knn/knn.h"
#include "csrc/kernels/sampling/fps/cloud.h"

namespace torchvox {

// The points of one cloud. Whatever lengths and offsets hold, they lie in the cloud's block
// (ragged: among all points).
struct KnnCloud {
  int64_t first;  // position of its first point among all points (batched: number * capacity)
  int64_t base;  // element of `points` where that point starts
  uint32_t points;
  int64_t index_base;  // added to the index of a point

  static TORCHVOX_HD KnnCloud of(const KnnArgs& args, int64_t b) {
    KnnCloud cloud;
    if (args.ragged) {
      cloud.first = clamp_index(args.ptr[b], 0, args.capacity);
      const int64_t end = clamp_index(args.ptr[b + 1], cloud.first, args.capacity);
      cloud.points = static_cast<uint32_t>(end - cloud.first);
      cloud.base = cloud.first * args.point_stride;
      cloud.index_base = args.local_index ? 0 : cloud.first;
    } else {
      cloud.first = b * args.capacity;
      cloud.points = static_cast<uint32_t>(
          args.lengths.given() ? clamp_index(args.lengths[b], 0, args.capacity) : args.capacity);
      cloud.base = b * args.cloud_stride;
      cloud.index_base = 0;
    }
    return cloud;
  }
};

// One query: a row of the outputs.
struct KnnQuery {
  int64_t row;
  int64_t cloud;  // -1: it does not exist, or belongs to none
  int64_t at;  // element of `query` where it starts

  static TORCHVOX_HD KnnQuery of(const KnnArgs& args, int64_t row) {
    if (args.ragged) return {row, cloud_of(args, row), row * args.query_stride};
    const int64_t cloud = row / args.rows;
    const int64_t in_cloud = row - cloud * args.rows;
    const bool exists = !args.query_lengths.given() || in_cloud < args.query_lengths[cloud];
    return {row, exists ? cloud : -1,
            cloud * args.query_cloud_stride + in_cloud * args.query_stride};
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

// A point or query as the fast paths see it: fp32 after widening, at most three axes.
TORCHVOX_HD Point3 load_axes(const KnnArgs& args, const void* rows, int64_t at) {
  const float x = load_coordinate(rows, args.dtype, at);
  const float y = args.dims > 1 ? load_coordinate(rows, args.dtype, at + 1) : 0.0f;
  const float z = args.dims > 2 ? load_coordinate(rows, args.dtype, at + 2) : 0.0f;
  return args.order == DistOrder::kPn2 ? Point3{y, x, z} : Point3{x, y, z};
}

// `index_base` is that of the cloud.
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

// How the clouds are put in spatial order.
inline FpsArgs order_args(const KnnArgs& args) {
  FpsArgs points;
  points.points = args.points;
  points.dtype = args.dtype;
  points.ragged = args.ragged;
  points.clouds = args.clouds;
  points.capacity = args.capacity;
  points.dims = args.dims;
  points.cloud_stride = args.cloud_stride;
  points.point_stride = args.point_stride;
  points.lengths = args.lengths;
  points.ptr = points.out_ptr = args.ptr;  // without samples no slot matters
  points.order = args.order;
  return points;
}

// Points of at most three axes in fp32, compared by their squared distance, have fast kernels.
inline bool is_fast(const KnnArgs& args) {
  return args.dtype != DType::kDouble && args.dims <= 3 && !args.manhattan;
}

// How a call runs, from sizes that the host knows. No plan changes a result.
enum class KnnKernel : int64_t {
  kScan,  // measures every point; CUDA: a warp a few queries
  kTiles,  // visits those tiles of a spatial order that may hold a neighbor
  kSelect  // CUDA: a block a query, for whatever the others do not take
};

// CUDA: neighbors that a thread's registers hold, and a warp's; more are left to kSelect.
inline constexpr int64_t kFewListed = 4;
inline constexpr int64_t kMostListed = 128;

KnnKernel choose_knn_kernel(const KnnArgs& args, const Target& target);

}  // namespace torchvox
