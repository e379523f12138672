// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <type_traits>

#include "csrc/kernels/pillars/encode/gradient.h"
#include "csrc/kernels/pillars/tree_sum_cpu.h"

namespace torchvox {
namespace {

// The sums of 32 rows, all channels and columns. kColumns as in RowGradient.
template <class T, class Real, int kColumns>
void sum_group(const PillarEncodeBackwardArgs& args, int64_t group, double* sums) {
  constexpr int kSums = kColumns > 0 ? kColumns + 7 : 1;
  const int64_t columns = args.map.decorated();
  const int64_t end = std::min((group + 1) * kTreeWidth, args.map.rows.rows);
  for (int64_t channel = 0; channel < args.outputs; ++channel) {
    double* to = sums + channel * (columns + 1);
    for (int64_t pass = 0; pass < (kColumns > 0 ? 1 : columns + 1); ++pass) {
      double sum[kSums] = {};
      for (int64_t row = group * kTreeWidth; row < end; ++row) {
        RowGradient<T, Real, kColumns> share;
        share.find(args, row, end, channel);
        share.read(args, row, channel);
        share.add(args, pass, sum);
      }
      if (kColumns == 0) {
        to[pass] = sum[0];
      } else {
        std::copy_n(sum, columns, to);
        to[columns] = sum[kSums - 1];
      }
    }
  }
}

template <class T, class Real>
auto sum_group_for(int64_t columns) {
  if constexpr (std::is_same_v<T, float> && std::is_same_v<Real, float>) {
    if (columns == 4) return sum_group<float, float, 4>;
    if (columns == 5) return sum_group<float, float, 5>;
  }
  return sum_group<T, Real, 0>;
}

}  // namespace

int64_t workspace_bytes(const PillarEncodeBackwardArgs& args,
                        [[maybe_unused]] const Target& target) {
#ifdef TORCHVOX_CUDA
  if (target.cuda) return cuda_workspace_bytes(args);
#endif
  return host_tree_bytes(args.map.rows.rows, args.outputs * (args.map.decorated() + 1));
}

void run_cpu(const PillarEncodeBackwardArgs& args, void* memory, const ParallelFor& parallel_for) {
  const int64_t values = args.outputs * (args.map.decorated() + 1);
  const HostTree tree(args.map.rows.rows, values, memory);
  with_pillar_types(args.map.dtype, args.wide, [&](auto type, auto real) {
    const auto sum = sum_group_for<decltype(type), decltype(real)>(args.map.columns);
    for_each_index(parallel_for, tree.groups(), 1,
                   [&](int64_t group) { sum(args, group, tree.of(group)); });
  });
  const double* sums = tree.total(parallel_for);
  for (int64_t i = 0; i < values; ++i) store_gradient(args, i, sums[i]);
}

}  // namespace torchvox
