// SPDX-License-Identifier: Apache-2.0
//
// occupancy_integrate_ on the CPU: the steps of integrate.h, rays and rows in tasks.
#include <algorithm>

#include "csrc/kernels/occupancy/integrate.h"

namespace torchvox {
namespace {

constexpr int64_t kRaysPerTask = 256;

void touch_regions(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                   const ParallelFor& parallel_for) {
  std::fill_n(work.set.keys, work.set.size, RegionSet::kEmpty);
  std::fill_n(work.zeros, int{IntegrateWork::kZeros}, 0);
  for_each_range(parallel_for, args.rays.points.rows, kRaysPerTask,
                 [&](int64_t begin, int64_t end) {
                   RayTally tally;
                   int64_t visits = 0, truncated = 0;
                   for (int64_t i = begin; i < end; ++i) {
                     const TouchedRay ray = touch(args, work.set, i);
                     tally.add(ray.status);
                     visits += ray.visits;
                     truncated += ray.truncated;
                   }
                   tally.flush(args.counts);
                   add_count(&args.counts[kRayWalked], tally.of(kRayWalked));
                   add_count(&args.counts[kRaysGiven], end - begin - tally.of(kRayPadding));
                   add_count(&args.counts[kRaysTruncated], truncated);
                   add_count(&args.counts[kVisits], visits);
                 });
}

void number_regions(const OccupancyIntegrateArgs& args, const IntegrateWork& work) {
  int64_t touched = 0, fresh = 0;
  for (int64_t at = 0; at < work.set.size; ++at) {
    if (work.set.keys[at] == RegionSet::kEmpty) continue;
    const int64_t slot = args.state.find(static_cast<int64_t>(work.set.keys[at]));
    number_region(args, work, at, slot, touched, fresh);
    for (int word = 0; word < RegionBox::kWords; ++word) {
      const uint32_t bound = RegionBox::bound(static_cast<int64_t>(work.set.keys[at]), word);
      work.bounds[word] = std::max(work.bounds[word], bound);
    }
    ++touched;
    fresh += slot < 0;
  }
  plan_call(args, work, touched, fresh);
}

template <bool kShared, class Word, Visits kVisits>
void walk(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
          const ParallelFor& parallel_for) {
  for_each_range(parallel_for, args.rays.points.rows, kRaysPerTask,
                 [&](int64_t begin, int64_t end) {
                   RayVotes<kShared, Word, kVisits> votes(args, work);
                   for (int64_t i = begin; i < end; ++i) {
                     for (votes.begin(i, 0, 1); votes.walks;) votes.visit();
                   }
                 });
}

template <bool kShared, class Word>
void integrate(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
               const ParallelFor& parallel_for) {
  const int64_t rows = work.plan->goes;
  const Enough enough(args);
  Word* const counts = static_cast<Word*>(work.counts);
  if (args.skip_missing) std::fill_n(work.box, work.set.size, kNoRow);
  for_each_index(parallel_for, rows, 32, [&](int64_t row) {
    commit_region(args, work, row);
    const int64_t slot = work.slot[row];
    for (int64_t v = 0; v < kRegionVoxels; ++v) {
      const int16_t logodds = args.state.logodds[slot * kRegionVoxels + v];
      counts[row * kRegionVoxels + v] = static_cast<Word>(enough.first_count(args, logodds));
    }
  });
  std::fill_n(&counts[args.rows() * kRegionVoxels], kRegionVoxels,
              static_cast<Word>(enough.counted));
  visits_are_plain(args) ? walk<kShared, Word, Visits::kPlain>(args, work, parallel_for)
                         : walk<kShared, Word, Visits::kFlagged>(args, work, parallel_for);
  for_each_range(parallel_for, rows, 32, [&](int64_t begin, int64_t end) {
    int64_t updated = 0;
    for (int64_t i = begin * kRegionVoxels; i < end * kRegionVoxels; ++i) {
      const int64_t slot = work.slot[i / kRegionVoxels];
      const int64_t voxel = slot * kRegionVoxels + i % kRegionVoxels;
      updated += finish_voxel(args, voxel, args.state.logodds[voxel], counts[i], enough);
    }
    add_count(&args.counts[kVoxelsUpdated], updated);
  });
}

}  // namespace

int64_t workspace_bytes_cpu(const OccupancyIntegrateArgs& args) {
  return carved_bytes<IntegrateWork>(args);
}

void run_cpu(const OccupancyIntegrateArgs& args, void* memory, const ParallelFor& parallel_for) {
  Workspace workspace(memory);
  const IntegrateWork work(args, workspace);
  std::fill_n(args.counts, int{kIntegrateCounts}, 0);
  touch_regions(args, work, parallel_for);
  number_regions(args, work);
  if (work.plan->goes < 0) return;
  if (args.threads > 1) {
    args.narrow() ? integrate<true, uint32_t>(args, work, parallel_for)
                  : integrate<true, uint64_t>(args, work, parallel_for);
  } else {
    args.narrow() ? integrate<false, uint32_t>(args, work, parallel_for)
                  : integrate<false, uint64_t>(args, work, parallel_for);
  }
  finish_status(args, work);
}

}  // namespace torchvox
