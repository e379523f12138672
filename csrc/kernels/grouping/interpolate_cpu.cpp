// SPDX-License-Identifier: Apache-2.0
//
// Interpolation on the CPU: tasks of 512 queries or slots. Channel-last loops run over channels, so
// that they vectorize.
#include <algorithm>

#include "csrc/kernels/grouping/interpolate.h"

namespace torchvox {
namespace {

constexpr int64_t kQueriesPerTask = 512;

// The one sum that is left of many, the upper half added to the lower again and again.
template <class Sum>
Sum halved(Sum* sums) {
  for (int half = kWeightSums / 2; half > 0; half /= 2) {
    for (int c = 0; c < half; ++c) sums[c] += sums[c + half];
  }
  return sums[0];
}

// The channels of queries [begin, end), channel-last, so that they vectorize.
template <class T>
void interpolate_rows(const InterpolateArgs& args, int64_t begin, int64_t end) {
  using Sum = compute_t<T>;
  const T* const features = static_cast<const T*>(args.features);
  for (int64_t query = begin; query < end; ++query) {
    const Nearest<Sum> nearest(args, query);
    const Sum w0 = nearest.weight[0], w1 = nearest.weight[1], w2 = nearest.weight[2];
    if (nearest.row[0] < 0 || nearest.row[1] < 0 || nearest.row[2] < 0) {
      for (int64_t c = 0; c < args.channels; ++c) interpolate_element<T>(args, nearest, query, c);
      continue;
    }
    const T* const f0 = features + nearest.row[0] * args.channels;
    const T* const f1 = features + nearest.row[1] * args.channels;
    const T* const f2 = features + nearest.row[2] * args.channels;
    T* const out = static_cast<T*>(args.out) + query * args.channels;
    for (int64_t c = 0; c < args.channels; ++c) {
      const Sum sum =
          fma_rn(w2, Sum(widen(f2[c])), fma_rn(w0, Sum(widen(f0[c])), w1 * Sum(widen(f1[c]))));
      out[c] = narrow<T>(quiet(sum));
    }
  }
}

// The gradients of the weights of slots [begin, end), channel-last: the 32 sums side by side.
template <class T>
void weight_gradients(const InterpolateWeightGradArgs& args, int64_t begin, int64_t end) {
  using Sum = compute_t<T>;
  for (int64_t i = begin; i < end; ++i) {
    const int64_t query = i / kNearest, index = args.idx[i];
    const bool inside = index >= 0 && index < args.rows;
    const int64_t row = query / args.queries * args.rows + (inside ? index : 0);
    const T* const grad = static_cast<const T*>(args.grad) + query * args.channels;
    const T* const feature = static_cast<const T*>(args.features) + row * args.channels;
    Sum sums[kWeightSums] = {};
    int64_t c = 0;
    for (; inside && c + kWeightSums <= args.channels; c += kWeightSums) {
      for (int lane = 0; lane < kWeightSums; ++lane) {
        sums[lane] = fma_rn(Sum(widen(grad[c + lane])), Sum(widen(feature[c + lane])), sums[lane]);
      }
    }
    for (int lane = 0; inside && c + lane < args.channels; ++lane) {
      sums[lane] = fma_rn(Sum(widen(grad[c + lane])), Sum(widen(feature[c + lane])), sums[lane]);
    }
    store_as(args.grad_weight, args.weight_dtype, i, quiet(halved(sums)));
  }
}

// rows(T{}, begin, end) of all ranges of queries or slots.
template <class Rows>
void run_ranges(DType dtype, int64_t count, const ParallelFor& parallel_for, const Rows& rows) {
  for_each_range(parallel_for, count, kQueriesPerTask, [&](int64_t begin, int64_t end) {
    with_point_type(dtype, [&](auto type) {
      run_vectorized(interpolate_cpu_plan, [&] { rows(type, begin, end); });
    });
  });
}

}  // namespace

void run_cpu(const InterpolateArgs& args, void*, const ParallelFor& parallel_for) {
  if (!args.channels_first) {
    return run_ranges(args.dtype, args.clouds * args.queries, parallel_for,
                      [&](auto type, int64_t begin, int64_t end) {
                        interpolate_rows<decltype(type)>(args, begin, end);
                      });
  }
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, args.clouds * args.queries, kQueriesPerTask, [&](int64_t query) {
      const Nearest<compute_t<T>> nearest(args, query);
      for (int64_t c = 0; c < args.channels; ++c) interpolate_element<T>(args, nearest, query, c);
    });
  });
}

void run_cpu(const InterpolateWeightGradArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t slots = args.clouds * args.queries * kNearest;
  if (!args.channels_first) {
    return run_ranges(args.dtype, slots, parallel_for, [&](auto type, int64_t begin, int64_t end) {
      weight_gradients<decltype(type)>(args, begin, end);
    });
  }
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, slots, kQueriesPerTask, [&](int64_t i) {
      compute_t<T> sums[kWeightSums];
      for (int64_t c = 0; c < kWeightSums; ++c) sums[c] = weight_partial<T>(args, i, c);
      store_as(args.grad_weight, args.weight_dtype, i, quiet(halved(sums)));
    });
  });
}

}  // namespace torchvox
