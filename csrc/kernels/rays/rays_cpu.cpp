// SPDX-License-Identifier: Apache-2.0
//
// The operators on rays on the CPU: tasks of rays.
#include <algorithm>

#include "csrc/kernels/rays/rays.h"

namespace torchvox {

constexpr int64_t kRaysPerTask = 256;

int64_t workspace_bytes_cpu(const RayRegionsArgs& args) {
  return carved_bytes<RegionSet>(args.max_out);
}

void run_cpu(const RayRegionsArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto set = carve<RegionSet>(memory, args.max_out);
  std::fill_n(set.keys, set.size, RegionSet::kEmpty);
  *set.full = 0;
  std::fill_n(args.counts, kRayCounts, 0);
  for_each_range(
      parallel_for, args.rays.points.rows, kRaysPerTask, [&](int64_t begin, int64_t end) {
        RayTally tally;
        for (int64_t i = begin; i < end; ++i) {
          Ray ray;
          const RayStatus status = args.rays.ray(i, &ray);
          tally.add(status);
          if (status != kRayWalked) continue;
          for_each_region(ray, args.rays.part(ray), [&](int64_t key) { set.insert(key); });
        }
        tally.flush(args.counts);
      });
  uint64_t* const keys_end = std::remove(set.keys, set.keys + set.size, RegionSet::kEmpty);
  int64_t regions = keys_end - set.keys;
  const int64_t kept = regions_kept(args, set, &regions);
  if (kept > 0) std::sort(set.keys, keys_end);
  std::copy_n(set.keys, kept, args.keys);
  std::fill(args.keys + kept, args.keys + args.max_out, -1);
  args.counts[0] = kept;
  args.counts[1] = regions;
}

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

int64_t workspace_bytes_cpu(const RayVoxelsArgs&) { return 0; }

void run_cpu(const RayVoxelsArgs& args, void*, const ParallelFor& parallel_for) {
  const int64_t rays = args.rays.points.rows;
  std::fill_n(args.counts, kRayCounts, 0);
  for_each_range(parallel_for, rays, kRaysPerTask, [&](int64_t begin, int64_t end) {
    RayTally tally;
    for (int64_t i = begin; i < end; ++i) {
      RayStatus status;
      args.offsets[i + 1] = count_visits(args, i, &status);
      tally.add(status);
    }
    tally.flush(args.counts);
  });
  args.offsets[0] = 0;
  for (int64_t i = 0; i < rays; ++i) args.offsets[i + 1] += args.offsets[i];
  args.counts[0] = args.kept();
  args.counts[1] = args.offsets[rays];
  for_each_index(parallel_for, rays, kRaysPerTask, [&](int64_t i) { write_visits(args, i); });
  for_each_index(parallel_for, args.max_out - args.kept(), 4096,
                 [&](int64_t row) { write_visit(args, args.kept() + row, -1, nullptr, 0, 0); });
}

}  // namespace torchvox
