// SPDX-License-Identifier: Apache-2.0
//
// voxel_keys on the CPU: tasks of rows, their counts added up at the end of each.
#include <algorithm>

#include "csrc/kernels/filter/voxel_key.h"

namespace torchvox {

constexpr int64_t kRowsPerTask = 4096;

void run_cpu(const VoxelKeysArgs& args, void*, const ParallelFor& parallel_for) {
  const CloudBatch& points = args.points;
  const int64_t stride = args.counts_stride;
  if (stride == kKeyCounts) std::fill_n(args.counts, (points.clouds + 1) * stride, 0);
  with_key_types(args, [&](auto type, auto real) {
    const auto add = [&](int64_t sample, int32_t(&counts)[kKeyCounts]) {
      for (int c = 0; c < kKeyCounts; ++c) {
        if (counts[c] == 0) continue;
        __atomic_fetch_add(&args.counts[c], counts[c], __ATOMIC_RELAXED);
        __atomic_fetch_add(&args.counts[(sample + 1) * stride + c], counts[c], __ATOMIC_RELAXED);
        counts[c] = 0;
      }
    };
    for_each_range(parallel_for, points.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
      const VoxelKeysArgs own = args;  // a copy that, for the compiler, no written key can change
      int32_t counts[kKeyCounts] = {};  // of sample `last`
      int64_t last = -1;
      for (int64_t row = begin; row < end; ++row) {
        const int64_t sample = own.points.packed_owner(row);
        if (sample != last) {
          if (last >= 0) add(last, counts);
          last = sample;
        }
        KeyCount column;
        own.keys[row] = kNoVoxelKey;
        if (sample < 0) continue;
        own.keys[row] =
            own.template locate_row<decltype(type), decltype(real)>(row, sample, &column);
        ++counts[column];
      }
      if (last >= 0) add(last, counts);
    });
  });
}

}  // namespace torchvox
