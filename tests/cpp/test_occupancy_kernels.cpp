// SPDX-License-Identifier: Apache-2.0
//
// Rays and maps without torch: what rays visit, see and update, and how maps are read and edited,
// on every side against one thread; states of random bytes under the sanitizers.
#include <array>

#include "csrc/kernels/occupancy/decay.h"
#include "csrc/kernels/occupancy/extract.h"
#include "csrc/kernels/occupancy/insert.h"
#include "csrc/kernels/occupancy/integrate/integrate.h"
#include "csrc/kernels/occupancy/query.h"
#include "csrc/kernels/occupancy/raycast.h"
#include "csrc/kernels/occupancy/remove.h"
#include "csrc/kernels/rays/visibility.h"
#include "csrc/kernels/rays/voxels.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

// Rays from three places, of every sum of flags; some not finite, some to faces.
struct Rays {
  std::vector<float> points, origins{0.03f, 0, 0.4f, -2, 1, 0.5f, 1, kNan, 0};
  std::vector<int64_t> index;
  std::vector<uint8_t> flags;

  Rays(int64_t count, Random& random) {
    for (int64_t i = 0; i < 3 * count; ++i) {
      const float x = random.uniform(-6, 6);
      points.push_back(random.below(40) == 0 ? kNan : random.below(3) ? x : std::round(x));
    }
    for (int64_t i = 0; i < count; ++i) {
      index.push_back(random.below(10) ? 0 : random.below(5) - 1);
      flags.push_back(random.below(4) ? 0 : static_cast<uint8_t>(random.below(16)));
    }
  }
  int64_t count() const { return static_cast<int64_t>(index.size()); }

  void fill(Side& side, RayInput& rays) const {
    rays.points.data = side.put(points);
    rays.points.packed = true;
    rays.points.rows = count();
    rays.points.columns = rays.points.row_stride = 3;
    rays.origins = side.put(origins);
    rays.origin_rows = rays.origin_stride = 3;
    rays.origin_index = side.put(index, true);
    rays.flags = side.put(flags);
  }
  MapRays of_map(Side& side) const {
    MapRays rays;
    fill(side, rays);
    rays.voxel_size = 0.2;
    rays.max_range = 5;
    return rays;
  }
};

TEST_CASE("rays visit voxels and regions") {
  Random random(1);
  for (const int64_t count : {0, 1, 300, 3000}) {
    const Rays rays(count, random);
    for (const bool clips : {false, true}) {
      const Outputs outputs = on_every_side([&](Side& side) {
        RayVoxelsArgs args;
        args.rays = rays.of_map(side);
        args.rays.clips = clips;
        args.rays.box = {{-9, -5, -20}, {14, 8, 3}};
        args.reverse = clips;
        args.max_out = 30 * count;
        args.indices = side.room<int32_t>("indices", 4 * args.max_out);
        args.ray = side.room<int32_t>("ray", args.max_out);
        args.span = side.room<double>("span", 2 * args.max_out);
        args.offsets = side.room<int64_t>("offsets", count + 1);
        args.counts = side.room<int64_t>("counts", kRayCounts);
        side.run(args);
        RayRegionsArgs regions;
        regions.rays = args.rays;
        regions.max_out = 200;
        regions.keys = side.room<int64_t>("keys", regions.max_out);
        regions.counts = side.room<int64_t>("region counts", kRayCounts);
        side.run(regions);
      });
      const auto counts = outputs.get<int64_t>("counts");
      CHECK(counts[1] == outputs.get<int64_t>("offsets")[count]);
      const auto span = outputs.get<double>("span");
      int64_t backward = 0;
      for (int64_t row = 0; row < counts[0]; ++row) backward += span[2 * row] > span[2 * row + 1];
      CHECK(backward == 0);
    }
  }
}

TEST_CASE("pieces of a ray visit in order what the ray visits") {
  Random random(2);
  const auto visits = [](const RayLine& line, const RayPart& part, auto& cells) {
    if (part.visits == 0) return;
    RayWalk<kUnitShift> walk(line, part);
    CHECK(walk.left == part.visits - 1);
    for (;; walk.step()) {
      cells.push_back({walk.cell[0], walk.cell[1], walk.cell[2]});
      if (walk.left == 0) return;
    }
  };
  for (int k = 0; k < 2000; ++k) {
    RayLine line;
    const int64_t unit = k % 2 ? kUnits / 2 : 1, reach = int64_t{1} << (10 + k % 10);
    for (int axis = 0; axis < 3; ++axis) {  // many to faces and along axes, some to where they are
      line.from[axis] = (random.below(reach) - reach / 2) * unit;
      line.to[axis] = random.below(4) ? (random.below(reach) - reach / 2) * unit : line.from[axis];
      if (unit > 1) {
        line.from[axis] %= 40 * kUnits;
        line.to[axis] %= 40 * kUnits;
      }
    }
    for (const RayPart& part : {line.whole(), line.clip({{-5, -9, -2}, {14, 8, 3}})}) {
      if (part.visits == 0) continue;
      std::vector<std::array<int32_t, 3>> all;
      visits(line, part, all);
      for (const int n : {1, 2, 16}) {
        std::vector<std::array<int32_t, 3>> cells;
        for (int j = 0; j < n; ++j) visits(line, line.piece(part, j, n), cells);
        CHECK(cells == all);
      }
    }
  }
}

TEST_CASE("crossings are done in the order of exact fractions") {
  Random random(3);
  for (int k = 0; k < 3000; ++k) {
    RayLine line;
    const int64_t reach = int64_t{1} << (2 + k % 27), length = random.below(reach);
    for (int axis = 0; axis < 3; ++axis) {  // of equal, nearly equal and other lengths
      line.from[axis] = random.below(reach) - reach / 2;
      const int64_t along = random.below(3) ? length + random.below(3) - 1 : random.below(reach);
      line.to[axis] = line.from[axis] + (random.below(2) ? along : -along);
      if (k % 3 == 0) line.from[axis] = line.from[axis] / kUnits * kUnits;
      if (k % 5 == 0) line.to[axis] = line.to[axis] / kUnits * kUnits;
    }
    RayWalk<kUnitShift> walk(line, line.whole());
    int32_t done[3] = {};
    bool same = true;
    while (walk.left > 0 && same) {
      int first = -1;
      for (int axis = 2; axis >= 0; --axis) {
        if (done[axis] == line.crossings(axis)) continue;
        const auto at = [&](int i) { return line.to_face(i) + kUnits * done[i]; };
        const bool earlier =
            first >= 0 && at(axis) * line.length(first) < at(first) * line.length(axis);
        if (first < 0 || earlier) first = axis;
      }
      same = walk.step() == first;
      ++done[first];
    }
    CHECK(same);
  }
}

TEST_CASE("rays see a grid") {
  Random random(2);
  for (const int64_t count : {0, 300, 5000}) {
    const Rays rays(count, random);
    std::vector<uint8_t> blockers;
    for (int64_t i = 0; i < 16 * 20 * 12; ++i) blockers.push_back(random.below(20) == 0);
    const Outputs outputs = on_every_side([&](Side& side) {
      RayVisibilityArgs args;
      rays.fill(side, args);
      for (int axis = 0; axis < 3; ++axis) {
        args.grid.lo[axis] = -4;
        args.grid.size[axis] = 0.5f;
      }
      args.grid.cells[0] = 16;
      args.grid.cells[1] = 20;
      args.grid.cells[2] = 12;
      args.blockers = side.put(blockers);
      args.visibility = side.room<uint8_t>("visibility", args.volume());
      args.reached = side.room<int8_t>("reached", count);
      args.counts = side.room<int32_t>("counts", 2 * kVisibilityCounts);
      side.run(args);
    });
    CHECK(outputs.get<int32_t>("counts")[kVisibilityGiven] == count);
  }
}

// A map in memory.
struct Map {
  std::vector<uint32_t> table;
  std::vector<int64_t> key, status = std::vector<int64_t>(kStatusWords);
  std::vector<int32_t> stamp, hit_miss, touch;
  std::vector<int64_t> traversal;
  std::vector<int32_t> sample_row, sample_count, passes;
  std::vector<float> mean, cov, intensity;
  std::vector<int16_t> logodds;

  Map(int64_t capacity, bool counts)
      : table(power_of_two_from(2 * capacity + 2), kNoSlot),
        key(capacity, -1),
        stamp(capacity),
        hit_miss(counts ? 2 * kRegionVoxels * capacity : 0),
        touch(counts ? kRegionVoxels * capacity : 0, -1),
        traversal(touch.size()),
        sample_row(counts ? capacity : 0, -1),
        sample_count(counts ? kRegionVoxels * (capacity / 2 + 1) : 0),
        passes(2 * sample_count.size()),
        mean(3 * sample_count.size()),
        cov(6 * sample_count.size()),
        intensity(2 * sample_count.size()),
        logodds(kRegionVoxels * capacity, kUnobserved) {}

  // What is put is compared afterwards, so it may be written.
  template <class T>
  static T* written(Side& side, const std::vector<T>& values) {
    return const_cast<T*>(side.put(values));
  }
  OccupancyState on(Side& side) const {
    OccupancyState state;
    state.table = written(side, table);
    state.table_size = static_cast<int64_t>(table.size());
    state.region_key = written(side, key);
    state.region_stamp = written(side, stamp);
    state.status = written(side, status);
    state.logodds = written(side, logodds);
    if (!touch.empty()) {
      state.hit_miss = written(side, hit_miss);
      state.touch = written(side, touch);
      state.traversal = written(side, traversal);
      state.sample_row = written(side, sample_row);
      state.samples = {
          written(side, sample_count), written(side, mean),
          written(side, cov),          written(side, intensity),
          written(side, passes),       static_cast<int64_t>(sample_count.size()) / kRegionVoxels};
    }
    state.capacity = static_cast<int64_t>(key.size());
    return state;
  }
};

// Everything that can be done with a map.
void use(Side& side, const Map& map, const Rays& rays, uint32_t flags, int64_t max_touched) {
  const OccupancyState state = map.on(side);
  OccupancyIntegrateArgs integrate;
  integrate.rays = rays.of_map(side);
  integrate.state = state;
  integrate.sensor = {2250, -205, -2048, 3595};
  integrate.max_touched = max_touched;
  integrate.limited = true;
  integrate.flags = flags;
  integrate.threads = 2;
  integrate.timestamps = side.put(std::vector<double>(rays.count(), 1.5));
  integrate.ndt = {0.2, 0.3, 2, -0.4, 3, -5.5};
  integrate.intensity = side.put(std::vector<float>(rays.count(), 0.3f));
  for (const bool scan : {false, true}) {
    integrate.scan = scan && !state.samples.cov;
    integrate.counts = side.room<int64_t>("counts", kIntegrateCounts);
    side.run(integrate);
  }
  OccupancyRaycastArgs cast;
  cast.state = state;
  cast.rays = integrate.rays;
  cast.distance = side.room<float>("distance", rays.count());
  cast.unseen = side.room<float>("unseen", rays.count());
  cast.status = side.room<int8_t>("status", rays.count());
  cast.indices = side.room<int32_t>("indices", 4 * rays.count());
  cast.unknown = side.room<int32_t>("unknown", rays.count());
  side.run(cast);
  OccupancyQueryArgs query;
  query.state = state;
  query.frame = integrate.rays;
  query.points = integrate.rays.points;
  query.logodds = side.room<float>("point logodds", rays.count());
  query.label = side.room<int8_t>("label", rays.count());
  side.run(query);
  OccupancyExtractArgs extract;
  extract.state = state;
  extract.select = OccupancySelect::kObserved;
  extract.max_out = 500;
  extract.logodds = side.room<float>("row logodds", extract.max_out);
  extract.mean = side.room<float>("means", 3 * extract.max_out);
  extract.indices = side.room<int32_t>("rows", 4 * extract.max_out);
  extract.num_samples = side.room<int32_t>("samples", extract.max_out);
  extract.counts = side.room<int64_t>("extract counts", kStateCounts);
  side.run(extract);
  DecayArgs decay;
  decay.state = state;
  decay.factor = 40000;
  decay.forget = 200;
  decay.empty = side.room<bool>("empty", state.capacity);
  decay.counts = side.room<int64_t>("decay counts", kStateCounts);
  side.run(decay);
  RemoveArgs remove;
  remove.state = state;
  remove.mask = decay.empty;
  remove.counts = side.room<int64_t>("remove counts", kStateCounts);
  side.run(remove);
  InsertArgs insert;
  insert.state = state;
  Map given(5, !map.touch.empty());
  given.key = {3, 5, 5, 1 << 20, -1};
  if (!map.touch.empty()) {
    given.sample_row = {1, 0, -1, 7, 2};
    std::fill(given.sample_count.begin(), given.sample_count.end(), 2);
    for (size_t i = 0; i < given.cov.size(); ++i) given.cov[i] = i % 3 == 1 ? 0.f : 0.1f;
  }
  insert.given = given.on(side);
  insert.sensor = integrate.sensor;
  insert.counts = side.room<int64_t>("insert counts", kStateCounts);
  side.run(insert);
}

TEST_CASE("maps are updated, read and edited") {
  Random random(3);
  for (const int64_t capacity : {0, 20, 600}) {
    for (const bool counts : {false, true}) {
      const Rays rays(capacity < 100 ? 50 : 2000, random);
      for (const uint32_t flags : {0u, uint32_t{kStopAtOccupied}, kEndAsFree | kExcludeFree}) {
        on_every_side([&](Side& side) { use(side, Map(capacity, counts), rays, flags, 700); });
        if (quick) return;
      }
    }
  }
}

TEST_CASE("a state of random bytes is no danger") {
  Random random(4);
  const Rays rays(200, random);
  for (int round = 0; round < (quick ? 2 : 20); ++round) {
    Map map(30, round % 2);
    const auto scramble = [&](auto& values) {
      for (auto& value : values) {
        if (random.below(3)) value = static_cast<std::decay_t<decltype(value)>>(random.bits());
      }
    };
    scramble(map.table);
    for (uint32_t& slot : map.table) slot = random.below(2) ? slot % 40 : slot;
    scramble(map.key);
    scramble(map.status);
    if (random.below(2)) map.status[kStateRefused] = 0;
    scramble(map.stamp);
    scramble(map.hit_miss);
    scramble(map.touch);
    scramble(map.traversal);
    scramble(map.sample_row);
    for (int32_t& row : map.sample_row) row = random.below(2) ? row % 20 : row;
    scramble(map.sample_count);
    scramble(map.mean);
    scramble(map.cov);
    scramble(map.intensity);
    scramble(map.passes);
    scramble(map.logodds);
    const auto body = [&](Side& side) { use(side, map, rays, kStopAtOccupied, 100); };
    check_sides(body, run_on(Where::kThread, body), /*values_count=*/false);
  }
}

}  // namespace
