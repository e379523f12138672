// SPDX-License-Identifier: Apache-2.0
#include "csrc/kernels/grouping/interpolate_common.h"

namespace torchvox {
namespace {

constexpr int64_t kQueriesPerTask = 512;

}  // namespace

int64_t workspace_bytes(const InterpolateArgs&, const Target&) { return 0; }
int64_t workspace_bytes(const InterpolateWeightGradArgs&, const Target&) { return 0; }
int64_t workspace_bytes(const InterpolationWeightsArgs&, const Target&) { return 0; }

void run_cpu(const InterpolateArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, args.clouds * args.queries, kQueriesPerTask, [&](int64_t query) {
      const Nearest<compute_t<T>> nearest(args, query);
      for (int64_t c = 0; c < args.channels; ++c) interpolate_element<T>(args, nearest, query, c);
    });
  });
}

void run_cpu(const InterpolateWeightGradArgs& args, void*, const ParallelFor& parallel_for) {
  with_point_type(args.dtype, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, args.clouds * args.queries * kNearest, kQueriesPerTask,
                   [&](int64_t i) {
                     compute_t<T> sums[kWeightSums];
                     for (int64_t c = 0; c < kWeightSums; ++c)
                       sums[c] = weight_partial<T>(args, i, c);
                     for (int half = kWeightSums / 2; half > 0; half /= 2) {
                       for (int c = 0; c < half; ++c) sums[c] += sums[c + half];
                     }
                     store_weight(args.grad_weight, args.weight_dtype, i, sums[0]);
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
