// SPDX-License-Identifier: Apache-2.0
//
// voxel_sum and voxel_mean on the CPU: tasks of rows.
#include <algorithm>

#include "csrc/kernels/filter/exact_sum.h"

namespace torchvox {

constexpr int64_t kRowsPerTask = 512;

int64_t workspace_bytes_cpu(const VoxelSumArgs&) { return 0; }

void run_cpu(const VoxelSumArgs& args, void*, const ParallelFor& parallel_for) {
  with_value_type(args.type, [&](auto type) {
    using T = decltype(type);
    for_each_index(parallel_for, args.rows, kRowsPerTask, [&](int64_t row) {
      const int64_t begin = args.begin_of(row), end = std::max(begin, args.end_of(row));
      for (int64_t c = 0; c < args.columns; ++c) {
        ExactSum<T> sum;
        for (int64_t place = begin; place < end; ++place) args.add(place, c, &sum);
        args.store(row, c, sum, end - begin);
      }
    });
  });
}

}  // namespace torchvox
