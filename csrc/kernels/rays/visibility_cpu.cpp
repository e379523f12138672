// SPDX-License-Identifier: Apache-2.0
//
// ray_visibility on the CPU: tasks of rays.
#include <algorithm>

#include "csrc/kernels/rays/visibility.h"

namespace torchvox {

constexpr int64_t kRaysPerTask = 256;

void run_cpu(const RayVisibilityArgs& given, void* memory, const ParallelFor& parallel_for) {
  RayVisibilityArgs args = given;
  args.end = static_cast<int64_t*>(memory);
  std::fill_n(args.counts, (args.points.clouds + 1) * kVisibilityCounts, 0);
  for_each_range(parallel_for, args.volume(), 1 << 16, [&](int64_t begin, int64_t end) {
    std::fill(args.visibility + begin, args.visibility + end, kSeenNothing);
  });
  with_compute_type(args.points.dtype, [&](auto real) {
    for_each_range(parallel_for, args.points.rows, kRaysPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t sample = args.points.packed_owner(row);
        const VisibilityCount column = see<decltype(real)>(args, row, sample);
        for (const int64_t block : {int64_t{0}, sample + 1}) {
          if (sample < 0) break;
          int32_t* const counts = args.counts + block * kVisibilityCounts;
          __atomic_fetch_add(&counts[kVisibilityGiven], 1, __ATOMIC_RELAXED);
          __atomic_fetch_add(&counts[column], 1, __ATOMIC_RELAXED);
          if (is_walked(column)) {
            __atomic_fetch_add(&counts[kVisibilityWalked], 1, __ATOMIC_RELAXED);
          }
        }
      }
    });
  });
  for_each_index(parallel_for, args.points.rows, 4096, [&](int64_t row) { mark_end(args, row); });
}

}  // namespace torchvox
