// SPDX-License-Identifier: Apache-2.0
//
// `weigh` of occupancy_integrate_: votes of rays for the distributions that they pass, and samples
// where they end. It is a separate walk, since that of votes.h needs all registers and few voxels
// have a distribution.
#pragma once

#include "csrc/kernels/occupancy/integrate/integrate.h"

namespace torchvox {

constexpr int kStepsToDistribution = 16;  // at most, in one visit

// A ray with begin(), visit() and end() as of RayTouch and RayVotes; a visit goes on to the next
// voxel that the ray misses and that has a distribution.
struct RayWeights {
  const OccupancyIntegrateArgs& args;
  const IntegrateWork& work;
  const RegionBox rows;

  TORCHVOX_HD RayWeights(const OccupancyIntegrateArgs& args_in, const IntegrateWork& work_in)
      : args(args_in), work(work_in), rows(work_in.rows_by_place()) {}

  TORCHVOX_HD void begin(int64_t i, int j, int n) {
    const Ray& ray = work.rays[i].ray;
    RayPart part = work.part_of(i, j, n);
    ends_ = part.visits > 0 && part.last.steps() == ray.line.end().steps();
    samples_end_ = args.hits(ray, work.rays[i].part);
    if (!args.state.samples.cov && !args.has(kStopAtOccupied)) {  // only the last visit matters
      part.first = part.last;
      if (!ends_) part.visits = 0;
    }
    if (part.visits == 0) return;
    ray_ = &work.rays[i];
    walk_ = RayWalk<kUnitShift>(ray.line, part);
    misses_ = part.first.steps() == 0 ? args.misses_first(ray) : args.misses_between();
    place_ = ~rows.place_of_voxel(walk_.cell);  // not the place of its region
  }
  TORCHVOX_HD bool walks() const { return walk_.left > 0; }
  TORCHVOX_HD void visit() {
    Place missed;
    bool stops = false;
    for (int k = 0; k < kStepsToDistribution && walks() && missed.at < 0 && !stops; ++k) {
      const Place place = enter_voxel();
      if (misses_ && has_distribution(place.at)) missed = place;
      stops = stops_at(place.voxel);
      misses_ = args.misses_between();
      walk_.step();
    }
    if (missed.at >= 0) weigh_miss(missed);
    if (!stops) return;
    walk_.left = 0;
    ray_ = nullptr;
  }
  TORCHVOX_HD void end() {
    if (!ray_) return;
    const Place place = enter_voxel();
    const bool misses = ends_ ? args.misses_end(ray_->ray) : misses_;
    if (misses && has_distribution(place.at)) weigh_miss(place);
    if (ends_ && samples_end_ && row_ < args.rows()) add_sample(place);
    ray_ = nullptr;
  }

 private:
  struct Place {
    int32_t cell[3] = {}, voxel = 0;  // in the map, and in its region
    int64_t at = -1;  // among the samples of the state
    SampleVotes* votes = nullptr;
  };

  TORCHVOX_HD bool has_distribution(int64_t at) const {
    const Samples& samples = args.state.samples;
    return at >= 0 && samples.cov && samples.count[at] >= args.ndt.least_samples;
  }
  TORCHVOX_HD bool stops_at(int32_t voxel) const {
    return args.has(kStopAtOccupied) && slot_ >= 0 &&
        is_occupied(args.state.logodds[slot_ * kRegionVoxels + voxel], args.threshold);
  }
  TORCHVOX_HD Likelihood likelihood_at(const Place& place) const {
    const RayBeside beside(ray_->ray.line, place.cell, samples_end_);
    return likelihood(args.state.samples, place.at, beside, args.ndt.noise);
  }
  TORCHVOX_HD void weigh_miss(const Place& place) const {
    const Likelihood likely = likelihood_at(place);
    const int64_t missed = miss_of(args.ndt, likely);
    if (missed != 0) atomic_add(&place.votes->missed, static_cast<uint64_t>(missed));
    const bool through = likely.voxel * (1 - likely.sample) >= args.ndt.eta;
    if (args.state.samples.passes && through) atomic_add(&place.votes->through, 1u);
  }
  TORCHVOX_HD void add_sample(const Place& place) const {
    int32_t offset[3];
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t inside = ray_->ray.line.to[axis] & (kUnits - 1);
      offset[axis] = static_cast<int32_t>(inside - kUnits / 2);
    }
    SampleSums& sums =
        work.sums[work.hits.find(static_cast<uint64_t>(row_ * kRegionVoxels + place.voxel))];
    sums.add(offset, args.intensity ? args.intensity_of(ray_ - work.rays) : 0);
    if (!args.state.samples.passes) return;
    const Likelihood likely = has_distribution(place.at) ? likelihood_at(place) : Likelihood{1, 1};
    const bool hits = likely.voxel * likely.sample >= args.ndt.eta;
    if (hits || likely.voxel >= args.ndt.eta) atomic_add(&sums.passes[hits ? 0 : 1], 1u);
  }
  // The current voxel, and its place in the row of its region.
  TORCHVOX_HD Place enter_voxel() {
    const uint32_t region = rows.place_of_voxel(walk_.cell);
    if (region != place_) {
      place_ = region;
      const uint32_t row = work.row_of(rows, region, walk_.cell);
      row_ = lowered(row, args.rows());  // kNoRow is higher
      slot_ = row == kNoRow ? -1 : int64_t{work.slot[row]};
      samples_ = row == kNoRow ? SampleRow{} : work.samples[row];
    }
    Place place;
    for (int axis = 0; axis < 3; ++axis) place.cell[axis] = walk_.cell[axis];
    place.voxel = voxel_in_region(walk_.cell);
    if (samples_.row >= 0) {
      place.at = samples_.row * int64_t{kRegionVoxels} + place.voxel;
      place.votes = &work.votes[samples_.sums * int64_t{kRegionVoxels} + place.voxel];
    }
    return place;
  }

  const IntegrateWork::ReadRay* ray_ = nullptr;
  RayWalk<kUnitShift> walk_;
  uint32_t place_ = 0;  // of the region
  int64_t row_ = 0, slot_ = -1;
  SampleRow samples_;
  bool misses_ = false, ends_ = false;
  bool samples_end_ = false;  // the whole ray ends with a hit
};

}  // namespace torchvox
