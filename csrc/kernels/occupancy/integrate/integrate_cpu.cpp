// SPDX-License-Identifier: Apache-2.0
//
// occupancy_integrate_ on the CPU: the steps of integrate.h, rays and rows in tasks.
#include <algorithm>

#include "csrc/kernels/occupancy/integrate/touch.h"
#include "csrc/kernels/occupancy/integrate/votes.h"
#include "csrc/kernels/occupancy/integrate/weigh.h"

namespace torchvox {
namespace {

constexpr int64_t kRaysPerTask = 256;
constexpr int64_t kVoxelsPerLook = 16;  // tested at once, since most have no votes

void touch_regions(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
                   const ParallelFor& parallel_for) {
  std::fill_n(work.set.keys, work.set.size, RegionSet::kEmpty);
  *work.zeros = {};
  for_each_range(parallel_for, args.rays.points.rows, kRaysPerTask,
                 [&](int64_t begin, int64_t end) {
                   RayTally tally;
                   int64_t visits = 0, truncated = 0;
                   RayTouch ray(args, work);
                   for (int64_t i = begin; i < end; ++i) {
                     tally.add(read_ray(args, work, i));
                     visits += work.rays[i].part.visits;
                     truncated += work.rays[i].ray.truncated;
                     for (ray.begin(i, 0, 1); ray.walks();) ray.visit();
                     ray.end();
                   }
                   tally.flush(args.counts);
                   add_count(&args.counts[kRayWalked], tally.of(kRayWalked));
                   add_count(&args.counts[kRaysGiven], tally.given());
                   add_count(&args.counts[kRaysTruncated], truncated);
                   add_count(&args.counts[kVisits], visits);
                 });
}

void mark_ends(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
               const ParallelFor& parallel_for) {
  if (!args.samples()) return;
  std::fill_n(work.ends, work.set.size, uint8_t{0});
  for_each_index(parallel_for, args.rays.points.rows, kRaysPerTask,
                 [&](int64_t i) { mark_end(args, work, i); });
}

void number_regions(const OccupancyIntegrateArgs& args, const IntegrateWork& work) {
  RegionNumbers found;
  for (int64_t at = 0; at < work.set.size; ++at) {
    if (work.set.keys[at] == RegionSet::kEmpty) continue;
    const int64_t slot = args.state.find(static_cast<int64_t>(work.set.keys[at]));
    const int64_t samples = samples_before(args, work, at, slot);
    number_region(args, work, at, slot, samples, found);
    for (int word = 0; word < RegionBox::kWords; ++word) {
      const uint32_t bound = RegionBox::bound(static_cast<int64_t>(work.set.keys[at]), word);
      work.zeros->bounds[word] = std::max(work.zeros->bounds[word], bound);
    }
    ++found.regions;
    found.fresh += slot < 0;
    found.sampled += samples != SampleRow::kNone;
    found.fresh_samples += samples == SampleRow::kNew;
  }
  plan_call(args, work, found);
}

template <class RayOnItsWay>
void walk(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
          const ParallelFor& parallel_for) {
  for_each_range(parallel_for, args.rays.points.rows, kRaysPerTask,
                 [&](int64_t begin, int64_t end) {
                   RayOnItsWay ray(args, work);
                   for (int64_t i = begin; i < end; ++i) {
                     for (ray.begin(i, 0, 1); ray.walks();) ray.visit();
                     ray.end();
                   }
                 });
}

template <bool kShared, class Count, bool kSampled>
void integrate(const OccupancyIntegrateArgs& args, const IntegrateWork& work,
               const ParallelFor& parallel_for) {
  const int64_t rows = work.plan->rows;
  const Enough enough(args);
  const auto first_of_new = static_cast<Count>(enough.first_count(kUnobserved));
  int16_t fill[kVoxelsPerLook];
  std::fill_n(fill, kVoxelsPerLook, kUnobserved);
  std::fill_n(work.hits.voxels, work.hits.size, HitTable::kNone);
  std::fill_n(work.hits.hits, work.hits.size, ~uint32_t{0});
  if (kSampled) std::fill_n(work.sums, work.hits.size, SampleSums{});
  if (args.skip_missing) std::fill_n(work.box, work.set.size, kNoRow);
  for_each_index(parallel_for, rows, 32, [&](int64_t row) {
    commit_region(args, work, row);
    SampleVotes* const votes = kSampled ? work.votes_of(row) : nullptr;
    if (votes) std::fill_n(votes, kRegionVoxels, SampleVotes{});
    Count* const counts = work.counts_of<Count>(row);
    if (work.is_new(row)) {
      std::fill_n(counts, kRegionVoxels, first_of_new);
      return;
    }
    const int16_t* const logodds = &args.state.logodds[work.voxel_of(row, 0)];
    for (int64_t v = 0; v < kRegionVoxels; ++v) {
      counts[v] = static_cast<Count>(enough.first_count(logodds[v]));
    }
  });
  std::fill_n(work.counts_of<Count>(args.rows()), kRegionVoxels,
              static_cast<Count>(enough.counted));
  visits_are_plain(args)
      ? walk<RayVotes<kShared, Count, Visits::kPlain>>(args, work, parallel_for)
      : walk<RayVotes<kShared, Count, Visits::kFlagged>>(args, work, parallel_for);
  if (kSampled) walk<RayWeights>(args, work, parallel_for);
  const auto update = [&](int64_t count, int64_t task, const auto& update_one) {
    for_each_range(parallel_for, count, task, [&](int64_t begin, int64_t end) {
      int64_t updated = 0;
      for (int64_t i = begin; i < end; ++i) updated += update_one(i);
      add_count(&args.counts[kVoxelsUpdated], updated);
    });
  };
  update(work.hits.size, kRaysPerTask,
         [&](int64_t at) { return update_hit_voxel<Count, kSampled>(args, work, at, enough); });
  update(rows, 32, [&](int64_t row) {
    const Count* const counts = work.counts_of<Count>(row);
    const int64_t first = work.voxel_of(row, 0);
    int64_t updated = 0;
    for (int64_t v = 0; v < kRegionVoxels; v += kVoxelsPerLook) {
      const int16_t* const before = work.is_new(row) ? fill : &args.state.logodds[first + v];
      int32_t votes = 0;
      for (int64_t k = 0; k < kVoxelsPerLook; ++k) {
        votes |= static_cast<int32_t>(counts[v + k]) ^ enough.first_count(before[k]);
      }
      if (votes == 0) continue;
      for (int64_t k = v; k < v + kVoxelsPerLook; ++k) {
        int16_t* const logodds = &args.state.logodds[first + k];
        updated += finish_voxel<Count, kSampled>(args, work, row, k, logodds, counts[k], enough);
      }
    }
    return updated;
  });
}

}  // namespace

int64_t workspace_bytes_cpu(const OccupancyIntegrateArgs& args) {
  return carved_bytes<IntegrateWork>(args);
}

void run_cpu(const OccupancyIntegrateArgs& args, void* memory, const ParallelFor& parallel_for) {
  const auto work = carve<IntegrateWork>(memory, args);
  std::fill_n(args.counts, int{kIntegrateCounts}, 0);
  touch_regions(args, work, parallel_for);
  mark_ends(args, work, parallel_for);
  number_regions(args, work);
  if (work.plan->rows < 0) return;
  const bool shared = args.threads > 1;
  const auto run = args.samples()
      ? (shared ? integrate<true, uint32_t, true> : integrate<false, uint32_t, true>)
      : args.counts_little()
      ? (shared ? integrate<true, uint16_t, false> : integrate<false, uint16_t, false>)
      : (shared ? integrate<true, uint32_t, false> : integrate<false, uint32_t, false>);
  run(args, work, parallel_for);
  finish_status(args, work);
}

}  // namespace torchvox
