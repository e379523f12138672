// SPDX-License-Identifier: Apache-2.0
//
// One element of each gradient, for the host's loops and the device's threads.
#pragma once

#include "csrc/kernels/grouping/chunked_sum.h"
#include "csrc/kernels/grouping/neighbour_distance.h"

namespace torchvox {

// What one slot adds to the end that `difference` points at.
template <class Sum>
TORCHVOX_HD Sum slot_gradient(int norm, Sum grad, Sum difference) {
  if (norm == 2) return (grad + grad) * difference;
  return difference > 0 ? grad : (difference < 0 ? -grad : Sum(0));
}

// Element i of grad_points [clouds, rows, dims].
template <class T>
TORCHVOX_HD void point_gradient(const NeighbourDistanceArgs& args, int64_t i) {
  using Sum = compute_t<T>;
  const int64_t axis = i % args.dims, row = i / args.dims, cloud = row / args.rows;
  const int64_t slots = args.queries * args.k;
  const Sum* const grad = static_cast<const Sum*>(args.grad) + cloud * slots;
  const T* const query = static_cast<const T*>(args.query) + cloud * args.queries * args.dims;
  const int32_t* const order = args.order + cloud * slots;
  const int32_t* const range = args.offsets + row + cloud;  // lists of rows + 1 offsets a cloud
  const Sum point = widen(static_cast<const T*>(args.points)[i]);
  ChunkedSum<Sum> sum;
  for (int64_t at = range[0]; at < range[1]; ++at) {
    const int64_t slot = order[at];
    const Sum difference = point - widen(query[slot / args.k * args.dims + axis]);
    sum.add(slot_gradient(args.norm, grad[slot], difference));
  }
  static_cast<T*>(args.grad_points)[i] = narrow<T>(quiet(sum.total()));
}

// Element i of grad_query [clouds, queries, dims]. A slot without a neighbour adds nothing.
template <class T>
TORCHVOX_HD void query_gradient(const NeighbourDistanceArgs& args, int64_t i) {
  using Sum = compute_t<T>;
  const int64_t axis = i % args.dims, query = i / args.dims, cloud = query / args.queries;
  const Sum* const grad = static_cast<const Sum*>(args.grad) + query * args.k;
  const T* const points = static_cast<const T*>(args.points) + cloud * args.rows * args.dims;
  const Sum at = widen(static_cast<const T*>(args.query)[i]);
  ChunkedSum<Sum> sum;
  for (int64_t slot = 0; slot < args.k; ++slot) {
    const int64_t row = args.idx[query * args.k + slot];
    const bool named = row >= 0 && row < args.rows;
    const Sum difference = named ? at - widen(points[row * args.dims + axis]) : Sum(0);
    sum.add(named ? slot_gradient(args.norm, grad[slot], difference) : Sum(0));
  }
  static_cast<T*>(args.grad_query)[i] = narrow<T>(quiet(sum.total()));
}

}  // namespace torchvox
