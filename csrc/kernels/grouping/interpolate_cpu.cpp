// SPDX-License-Identifier: Apache-2.0
//
// Interpolation on the CPU: tasks of 512 queries or slots. Channel-last loops run over channels, so
// that they vectorize, and are compiled for two instruction sets.
#include <algorithm>

#include "csrc/kernels/core/plan_override.h"
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
    store_weight(args.grad_weight, args.weight_dtype, i, halved(sums));
  }
}

// One definition each, compiled for two instruction sets: without FMA every fma is a call of libm,
// with the same bits.
template <class Args>
using Range = void (*)(const Args&, int64_t, int64_t);

void interpolate_type(const InterpolateArgs& args, int64_t begin, int64_t end) {
  with_point_type(args.dtype,
                  [&](auto type) { interpolate_rows<decltype(type)>(args, begin, end); });
}
void weights_type(const InterpolateWeightGradArgs& args, int64_t begin, int64_t end) {
  with_point_type(args.dtype,
                  [&](auto type) { weight_gradients<decltype(type)>(args, begin, end); });
}
#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2,fma"), flatten)) void interpolate_avx2(const InterpolateArgs& args,
                                                                   int64_t begin, int64_t end) {
  interpolate_type(args, begin, end);
}
__attribute__((target("avx2,fma"), flatten)) void weights_avx2(
    const InterpolateWeightGradArgs& args, int64_t begin, int64_t end) {
  weights_type(args, begin, end);
}
#else
constexpr Range<InterpolateArgs> interpolate_avx2 = interpolate_type;
constexpr Range<InterpolateWeightGradArgs> weights_avx2 = weights_type;
#endif

template <class Args>
void run_range(const Args& args, Range<Args> baseline, Range<Args> avx2, int64_t count,
               const ParallelFor& parallel_for) {
  const Range<Args> range = instruction_set(interpolate_cpu_plan) > 0 ? avx2 : baseline;
  parallel_for((count + kQueriesPerTask - 1) / kQueriesPerTask, [&](int64_t first, int64_t last) {
    range(args, first * kQueriesPerTask, std::min(last * kQueriesPerTask, count));
  });
}

}  // namespace

void run_cpu(const InterpolateArgs& args, void*, const ParallelFor& parallel_for) {
  if (!args.channels_first) {
    run_range(args, interpolate_type, interpolate_avx2, args.clouds * args.queries, parallel_for);
    return;
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
    run_range(args, weights_type, weights_avx2, slots, parallel_for);
    return;
  }
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, slots, kQueriesPerTask, [&](int64_t i) {
      compute_t<T> sums[kWeightSums];
      for (int64_t c = 0; c < kWeightSums; ++c) sums[c] = weight_partial<T>(args, i, c);
      store_weight(args.grad_weight, args.weight_dtype, i, halved(sums));
    });
  });
}

void run_cpu(const InterpolationWeightsArgs& args, void*, const ParallelFor& parallel_for) {
  for_each_index(parallel_for, args.queries, kQueriesPerTask, [&](int64_t query) {
    if (args.dtype == DType::kDouble) {
      weights_of_query<double>(args, query);
    } else {
      weights_of_query<float>(args, query);
    }
  });
}

}  // namespace torchvox
