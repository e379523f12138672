// SPDX-License-Identifier: Apache-2.0
//
// Rays, and maps that they update; states of random bytes, with which sanitizers show that no
// access leaves the tensors.
#include <array>

#include "csrc/kernels/occupancy/edit.h"
#include "csrc/kernels/occupancy/integrate/integrate.h"
#include "csrc/kernels/occupancy/read.h"
#include "csrc/kernels/rays/rays.h"
#include "tests/cpp/harness.h"

namespace {

constexpr int64_t kRays = 2000;

// Rays from three places, with all combinations of flags.
void fill_rays(Side& side, RayInput& rays) {
  rays.points = packed(side, make_points(kRays, 3, 6, 1), 3);
  rays.origins = side.put<float>({0.03f, 0, 0.4f, -2, 1, 0.5f, 1, kNan, 0});
  rays.origin_rows = rays.origin_stride = 3;
  rays.origin_index = {side.put(Random(2).integers(kRays, -1, 4)), false};
  rays.flags = side.put(Random(3).integers<uint8_t>(kRays, 0, 16));
}
MapRays map_rays(Side& side) {
  MapRays rays;
  fill_rays(side, rays);
  rays.voxel_size = 0.2, rays.max_range = 5;
  return rays;
}

KERNEL_CASE(ray_voxels, 0x98ced5454424c8e6) {
  RayVoxelsArgs args;
  args.rays = map_rays(side), args.max_out = 10 * kRays;
  args.rays.clips = true, args.rays.box = {{-9, -5, -20}, {14, 8, 3}};
  side.room(&args.indices, 4 * args.max_out, &args.ray, args.max_out, &args.span, 2 * args.max_out,
            &args.offsets, kRays + 1, &args.counts, kRayCounts);
  side.run(args);
  RayRegionsArgs regions;
  regions.rays = args.rays, regions.max_out = 200;
  side.room(&regions.keys, regions.max_out, &regions.counts, kRayCounts);
  side.run(regions);
}

KERNEL_CASE(ray_visibility, 0xd6e540694df8b153) {
  RayVisibilityArgs args;
  fill_rays(side, args);
  for (int axis = 0; axis < 3; ++axis) {
    args.grid.lo[axis] = -4, args.grid.size[axis] = 0.5f, args.grid.cells[axis] = 12 + 4 * axis;
  }
  std::vector<uint8_t> blockers(args.volume());
  for (size_t i = 0; i < blockers.size(); i += 19) blockers[i] = 1;
  args.blockers = side.put(blockers);
  side.room(&args.visibility, args.volume(), &args.reached, kRays, &args.counts,
            2 * kVisibilityCounts);
  side.run(args);
}

KERNEL_CASE(transform_points, 0xc505a9b24a8303a3) {
  TransformPointsArgs args;
  args.points = packed(side, make_points(kRays, 4, 50, 4), 4);
  args.poses = side.put(Random(5).uniforms<double>(3 * 12)), args.pose_rows = 3;
  args.pose_index = {side.put(Random(6).integers(kRays, -1, 4)), false};  // some have no pose
  args.out = side.room<double>(3 * kRays);
  side.run(args);
}

using Voxels = std::vector<std::array<int32_t, 3>>;

void add_visits(const RayLine& line, const RayPart& part, Voxels* voxels) {
  if (part.visits == 0) return;
  RayWalk<kUnitShift> walk(line, part);
  CHECK(walk.left == part.visits - 1);
  for (;; walk.step()) {
    voxels->push_back({walk.cell[0], walk.cell[1], walk.cell[2]});
    if (walk.left == 0) return;
  }
}

TEST_CASE(pieces_of_a_ray_visit_in_order_what_the_ray_visits) {
  Random random(7);
  for (int k = 0; k < 2000; ++k) {
    RayLine line;
    const int64_t unit = k % 2 ? kUnits / 2 : 1, reach = int64_t{1} << (10 + k % 10);
    const int64_t modulo = k % 2 ? 40 * kUnits : reach;
    for (int axis = 0; axis < 3; ++axis) {  // many to faces and along axes, some to where they are
      line.from[axis] = (random.below(reach) - reach / 2) * unit % modulo;
      line.to[axis] = (random.below(reach) - reach / 2) * unit % modulo;
      if (random.below(4) == 0) line.to[axis] = line.from[axis];
    }
    for (const RayPart& part : {line.whole(), line.clip({{-5, -9, -2}, {14, 8, 3}})}) {
      Voxels all;
      add_visits(line, part, &all);
      for (const int n : {1, 2, 16}) {
        Voxels voxels;
        for (int j = 0; j < n && part.visits > 0; ++j) {
          add_visits(line, line.piece(part, j, n), &voxels);
        }
        CHECK(voxels == all);
      }
    }
  }
}

// A layer of a state: `fill`, or random values of which many are below `usual`.
template <class T>
T* layer(Side& side, Random* random, int64_t count, T fill, int64_t usual = 1) {
  std::vector<T> values(count, fill);
  for (T& value : values) {
    if (!random || random->below(3) == 0) continue;
    const uint64_t bits = random->bits();
    std::memcpy(&value, &bits, sizeof(T));
    if (random->below(2)) value = static_cast<T>(random->below(usual));
  }
  return side.put(values);
}

OccupancyState make_state(Side& side, int64_t capacity, bool all_layers, Random* random) {
  const int64_t voxels = kRegionVoxels * capacity;
  OccupancyState state;
  state.capacity = capacity, state.table_size = power_of_two_from(2 * capacity + 2);
  state.table = layer(side, random, state.table_size, kNoSlot, 40);
  state.region_key = layer<int64_t>(side, random, capacity, -1);
  state.region_stamp = layer<int32_t>(side, random, capacity, 0);
  state.status = layer<int64_t>(side, random, kStatusWords, 0, 20);
  state.logodds = layer<int16_t>(side, random, voxels, kUnobserved);
  if (!all_layers) return state;
  state.hit_miss = layer<int32_t>(side, random, 2 * voxels, 0);
  state.touch = layer<int32_t>(side, random, voxels, -1);
  state.traversal = layer<int64_t>(side, random, voxels, 0);
  state.sample_row = layer<int32_t>(side, random, capacity, -1, 20);
  Samples& samples = state.samples;
  samples.rows = capacity, samples.count = layer<int32_t>(side, random, voxels, 0);
  samples.mean = layer<float>(side, random, 3 * voxels, 0);
  samples.cov = layer<float>(side, random, 6 * voxels, 0);
  samples.intensity = layer<float>(side, random, 2 * voxels, 0);
  samples.passes = layer<int32_t>(side, random, 2 * voxels, 0);
  return state;
}

// Everything that can be done with a map.
void use_map(Side& side, const OccupancyState& state, const OccupancyState& other) {
  OccupancyIntegrateArgs integrate;
  integrate.rays = map_rays(side), integrate.state = state;
  integrate.max_touched = 400, integrate.limited = true, integrate.threads = 2;
  integrate.timestamps = side.put(std::vector<double>(kRays, 1.5));
  integrate.sensor = {2250, -205, -2048, 3595}, integrate.ndt = {0.2, 0.3, 2, -0.4, 3, -5.5};
  integrate.intensity = side.put(std::vector<float>(kRays, 0.3f));
  integrate.counts = side.room<int64_t>(kIntegrateCounts);
  side.run(integrate);

  OccupancyRaycastArgs cast;
  cast.state = state, cast.rays = integrate.rays;
  side.room(&cast.distance, kRays, &cast.unseen, kRays, &cast.status, kRays, &cast.indices,
            4 * kRays, &cast.unknown, kRays);
  side.run(cast);

  OccupancyQueryArgs query;
  query.state = state, query.frame = integrate.rays, query.points = integrate.rays.points;
  side.room(&query.logodds, kRays, &query.label, kRays);
  side.run(query);
  OccupancyCropArgs crop;
  crop.state = state, crop.frame = query.frame;
  for (int axis = 0; axis < 3; ++axis) {
    crop.grid.lo[axis] = -1, crop.grid.size[axis] = 0.25f, crop.grid.cells[axis] = 8;
  }
  side.room(&crop.logodds, crop.cells(), &crop.label, crop.cells());
  side.run(crop);

  OccupancyExtractArgs extract;
  extract.state = state, extract.select = OccupancySelect::kObserved, extract.max_out = 500;
  side.room(&extract.logodds, extract.max_out, &extract.mean, 3 * extract.max_out, &extract.indices,
            4 * extract.max_out, &extract.num_samples, extract.max_out, &extract.counts,
            kStateCounts);
  side.run(extract);

  DecayArgs decay;
  decay.state = state, decay.factor = 40000, decay.forget = 200;
  side.room(&decay.empty, state.capacity, &decay.counts, kStateCounts);
  side.run(decay);
  RemoveArgs remove;
  remove.state = state, remove.mask = decay.empty;
  remove.counts = side.room<int64_t>(kStateCounts);
  side.run(remove);
  InsertArgs insert;
  insert.state = state, insert.given = other;
  insert.given.region_key = side.put<int64_t>({3, 5, 5, 1 << 20, -1});
  insert.sensor = integrate.sensor;
  insert.counts = side.room<int64_t>(kStateCounts);
  side.run(insert);
}

KERNEL_CASE(occupancy, 0x1a11546efa11ddc3) {
  for (const bool all_layers : {false, true}) {
    const OccupancyState state = make_state(side, 400, all_layers, nullptr);
    use_map(side, state, make_state(side, 5, all_layers, nullptr));
  }
}

KERNEL_CASE(occupancy_random_states, kUnspecified) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    Random random(seed);
    const OccupancyState state = make_state(side, 30, seed % 2, &random);
    use_map(side, state, make_state(side, 5, seed % 2, &random));
  }
}

}  // namespace
