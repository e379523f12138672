// SPDX-License-Identifier: Apache-2.0
//
// Entry of the gradients of neighbor distances, and the rule of one element of each, for host and
// device.
#pragma once

#include "csrc/kernels/core/items.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"

namespace torchvox {

// Gradients of the distances of queries q to their neighbors p:
//   norm 2: d = |p - q|^2; a slot adds (2 grad) * (p - q) to its point, on each axis
//   norm 1: d = sum of |p - q|; a slot adds grad * sign(p - q) to its point, on each axis
// and the opposite to the query. Slots are added in the order of kSumChunk.
struct NeighborDistanceArgs {
  const void* grad = nullptr;  // [clouds, queries, k], fp64 for fp64 points, else fp32
  const void* points = nullptr;  // [clouds, rows, dims]
  const void* query = nullptr;  // [clouds, queries, dims]
  DType dtype = DType::kFloat;  // of points and query
  IndexArray idx;  // [clouds, queries, k]; outside [0, rows): no neighbor
  InverseIndex inverse;  // of idx, built only for grad_points; clouds and rows are always set
  void* grad_points = nullptr;  // as points; null: not needed
  void* grad_query = nullptr;  // as query, or null
  int norm = 2;
  int64_t queries = 0;  // of each cloud
  int64_t k = 0, dims = 3;
};

TORCHVOX_KERNEL(NeighborDistanceArgs);

// What one slot adds to the gradient of the end to which `difference` points.
template <class Sum>
TORCHVOX_HD Sum distance_gradient(int norm, Sum grad, Sum difference) {
  if (norm == 2) return (grad + grad) * difference;
  return difference > 0 ? grad : (difference < 0 ? -grad : Sum(0));
}

// Sums the slots that name one point, on one axis: a Gradient of segment_sum.h.
template <class T>
struct DistanceGradient {
  using Args = NeighborDistanceArgs;
  using Number = compute_t<T>;
  using Sum = Channels<Number, 1>;
  struct Slot {
    Number grad, query;
  };
  const Number* grad;
  const T* query;
  const T* points;
  T* out;
  uint32_t k, dims;
  int norm;
  Number point = 0;

  TORCHVOX_HD DistanceGradient(const NeighborDistanceArgs& args, int64_t cloud, int64_t axis) {
    const int64_t first = cloud * args.inverse.rows * args.dims + axis;
    grad = static_cast<const Number*>(args.grad) + cloud * args.inverse.slots;
    query = static_cast<const T*>(args.query) + cloud * args.queries * args.dims + axis;
    points = static_cast<const T*>(args.points) + first;
    out = static_cast<T*>(args.grad_points) + first;
    k = static_cast<uint32_t>(args.k);
    dims = static_cast<uint32_t>(args.dims);
    norm = args.norm;
  }
  static TORCHVOX_HD int64_t items(const NeighborDistanceArgs& args) { return args.dims; }

  TORCHVOX_HD Slot load(uint32_t slot) const {
    return {grad[slot], widen(query[int64_t{slot / k} * dims])};
  }
  TORCHVOX_HD void begin(int64_t row) { point = widen(points[row * dims]); }
  TORCHVOX_HD Sum term(const Slot& slot) const {
    return {{distance_gradient(norm, slot.grad, point - slot.query)}};
  }
  TORCHVOX_HD void store(int64_t row, const Sum& sum) const {
    store_items<T, 1>(out + row * dims, sum);
  }
};

// Element i of grad_query [clouds, queries, dims]. A slot without a neighbor adds nothing.
template <class T>
TORCHVOX_HD void query_gradient(const NeighborDistanceArgs& args, int64_t i) {
  using Sum = compute_t<T>;
  const int64_t rows = args.inverse.rows;
  const int64_t query = i / args.dims, axis = i - query * args.dims, cloud = query / args.queries;
  const Sum* const grad = static_cast<const Sum*>(args.grad) + query * args.k;
  const T* const points = static_cast<const T*>(args.points) + cloud * rows * args.dims;
  const Sum at = widen(static_cast<const T*>(args.query)[i]);
  ChunkedSum<Sum> sum;
  for (int64_t slot = 0; slot < args.k; ++slot) {
    const int64_t row = args.idx[query * args.k + slot];
    const bool named = row >= 0 && row < rows;
    const Sum difference = named ? at - widen(points[row * args.dims + axis]) : Sum(0);
    sum.add(named ? distance_gradient(args.norm, grad[slot], difference) : Sum(0));
  }
  static_cast<T*>(args.grad_query)[i] = narrow<T>(quiet(sum.total()));
}

}  // namespace torchvox
