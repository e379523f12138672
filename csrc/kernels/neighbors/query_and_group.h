// SPDX-License-Identifier: Apache-2.0
//
// Entry of the grouping step of query_and_group and its gradient, and the rule of one slot and one
// element, for host and device.
#pragma once

#include "csrc/kernels/core/map.h"
#include "csrc/kernels/core/ordered_sum.h"
#include "csrc/kernels/neighbors/ball_query/ball_query.h"

namespace torchvox {

inline constexpr int kMostGroupedRadii = 8;

// The radii by which the coordinates of a row's slots are divided; balls follow one another.
struct GroupRadii {
  int count = 0;  // 0: no division
  int64_t end[kMostGroupedRadii] = {};  // slot after the last of the ball
  double radius[kMostGroupedRadii] = {};

  TORCHVOX_HD double of_slot(int64_t slot) const {
    int r = 0;
    while (r < count - 1 && slot >= end[r]) ++r;
    return radius[r];
  }
};

// grouped[row, s] = (p - q, f), where p is the point that idx[row, s] names, f its features and q
// the query of the row. An index outside the cloud's block stands for zeros, including the
// coordinates. Differences, and quotients by the radius, are rounded to the dtype of the points.
struct QueryAndGroupArgs {
  CloudBatch points, query;  // padded, of one dtype and number of columns
  const void* features = nullptr;  // [clouds, points, channels], contiguous
  DType grouped_dtype = DType::kFloat;  // of features and grouped
  int64_t channels = 0;
  const int32_t* idx = nullptr;  // [clouds, queries, slots]
  int64_t slots = 0;
  GroupRadii radii;
  bool use_xyz = true, features_first = false;
  void* grouped = nullptr;  // [clouds, queries, slots, columns()], aligned to 16 bytes

  TORCHVOX_HD int64_t columns() const { return channels + (use_xyz ? points.columns : 0); }
  TORCHVOX_HD int64_t first_axis() const { return features_first ? channels : 0; }
  TORCHVOX_HD int64_t first_channel() const {
    return use_xyz && !features_first ? points.columns : 0;
  }
  // Whether a coordinate is simply the difference of two floats.
  TORCHVOX_HD bool plain_floats() const {
    return points.dtype == DType::kFloat && grouped_dtype == DType::kFloat && radii.count == 0;
  }
};

// The gradients of the coordinates from that of `grouped`, in the dtype of the points: for each
// slot's point, and for the query the negative sum over its slots in ascending order (kSumChunk of
// ordered_sum.h).
struct QueryAndGroupBackwardArgs {
  const void* grad = nullptr;  // [rows, slots, columns]
  DType grad_dtype = DType::kFloat;
  DType dtype = DType::kFloat;  // of the outputs
  int64_t rows = 0, slots = 0, columns = 0;
  int64_t first = 0;  // column of the first coordinate
  int64_t dims = 3;
  GroupRadii radii;
  void* grad_slots = nullptr;  // [rows, slots, dims], or null
  void* grad_query = nullptr;  // [rows, dims], or null
};

TORCHVOX_KERNEL_WITHOUT_WORKSPACE(QueryAndGroupArgs);

// x rounded to `dtype`.
TORCHVOX_HD float round_to(DType dtype, float x) {
  switch (dtype) {
    case DType::kHalf: return widen(narrow<Half>(x));
    case DType::kBFloat16: return widen(narrow<BFloat16>(x));
    default: return x;
  }
}
TORCHVOX_HD double round_to(DType, double x) { return x; }  // only for points in double

// The sources of a slot of grouped.
struct GroupSlot {
  int64_t point;  // element of its coordinates, or -1 if the index is outside
  int64_t query, features;
  int64_t slot;  // in its row

  // Slot `slot` of row `row`, the query of which is query `row` - b * queries of cloud b.
  static TORCHVOX_HD GroupSlot of(const QueryAndGroupArgs& args, int64_t row, int64_t b,
                                  int64_t slot) {
    const int64_t i = args.idx[row * args.slots + slot];
    const bool inside = i >= 0 && i < args.points.rows;
    return {inside ? b * args.points.cloud_stride + i * args.points.row_stride : -1,
            b * args.query.cloud_stride + (row - b * args.query.rows) * args.query.row_stride,
            (b * args.points.rows + i) * args.channels, slot};
  }
};

// Writes coordinate `axis` of a slot to element `at` of `grouped`.
template <class C>
TORCHVOX_HD void group_coordinate(const QueryAndGroupArgs& args, const GroupSlot& from,
                                  int64_t axis, void* grouped, int64_t at) {
  const C p =
      from.point < 0 ? C{0} : load_wide<C>(args.points.dtype, args.points.data, from.point + axis);
  const C q = load_wide<C>(args.points.dtype, args.query.data, from.query + axis);
  C relative = round_to(args.points.dtype, p - q);
  if (args.radii.count > 0) {
    relative =
        round_to(args.points.dtype, relative / static_cast<C>(args.radii.of_slot(from.slot)));
  }
  store_as(grouped, args.grouped_dtype, at, quiet(relative));
}

// Writes the coordinates begin, begin + step, .. of the slot whose elements begin at `at`.
TORCHVOX_HD void group_coordinates(const QueryAndGroupArgs& args, const GroupSlot& from,
                                   int64_t begin, int64_t step, void* grouped, int64_t at) {
  const int64_t first = at + args.first_axis();
  for (int64_t axis = begin; axis < args.points.columns; axis += step) {
    if (args.points.dtype == DType::kDouble) {
      group_coordinate<double>(args, from, axis, grouped, first + axis);
    } else {
      group_coordinate<float>(args, from, axis, grouped, first + axis);
    }
  }
}

// Items of a CPU task that have so many elements each.
inline int64_t group_items_per_task(int64_t elements) {
  constexpr int64_t kElementsPerTask = 16384;
  return elements < kElementsPerTask ? kElementsPerTask / (elements > 0 ? elements : 1) : 1;
}

// Gradient of coordinate i = row * dims + axis of all slots of a row, and of its query.
template <class C>
TORCHVOX_HD void group_gradient(const QueryAndGroupBackwardArgs& args, int64_t i) {
  const int64_t row = i / args.dims, axis = i % args.dims;
  ChunkedSum<C> sum;
  const int64_t first = row * args.slots;
  const auto load = [&](int64_t slot) {
    const int64_t at = (first + slot) * args.columns + args.first + axis;
    return slot < args.slots ? load_wide<C>(args.grad_dtype, args.grad, at) : C{0};
  };
  const auto take = [&](int64_t slot, C g) {
    if (slot >= args.slots) return;
    C x = round_to(args.dtype, g);
    if (args.radii.count > 0) {
      x = round_to(args.dtype, x / static_cast<C>(args.radii.of_slot(slot)));
    }
    sum.add(x);
    if (args.grad_slots) {
      store_as(args.grad_slots, args.dtype, (first + slot) * args.dims + axis, quiet(x));
    }
  };
  for (int64_t slot = 0; slot < args.slots; slot += 4) {  // four loads in flight at once
    const C g0 = load(slot), g1 = load(slot + 1), g2 = load(slot + 2), g3 = load(slot + 3);
    take(slot, g0), take(slot + 1, g1), take(slot + 2, g2), take(slot + 3, g3);
  }
  if (args.grad_query) {
    store_as(args.grad_query, args.dtype, row * args.dims + axis, quiet(-sum.total()));
  }
}
TORCHVOX_TYPED_MAP(QueryAndGroupBackwardArgs, with_compute_type, args.dtype, group_gradient,
                   (args.rows * args.dims), group_items_per_task(args.slots), 256);

}  // namespace torchvox
