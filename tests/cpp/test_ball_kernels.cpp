// SPDX-License-Identifier: Apache-2.0
//
// The ball query and query_and_group without torch: the host against the rule written plainly,
// every plan and side against the host.
#include <algorithm>

#include "csrc/kernels/neighbors/ball_query/ball_query.h"
#include "csrc/kernels/neighbors/query_and_group.h"
#include "csrc/kernels/neighbors/radius_neighbors.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

// A call in float32 with the memory that its pointers refer to.
struct Case {
  std::string name;
  BallQueryArgs args;
  Clouds points, query;

  void operator()(Side& side) const {
    BallQueryArgs bound = args;
    bound.points = points.on(side);
    bound.query = query.on(side);
    bound.dist2 = side.room<float>("dist2", bound.rows() * args.slots);
    bound.idx = side.room<int32_t>("idx", bound.rows() * args.slots);
    bound.count = side.room<int32_t>("count", bound.rows() * args.counts);
    side.run(bound);
  }
};

// The rule for batched clouds of three axes, pn2.
void check_against_the_rule(const Case& c, const Outputs& got) {
  const BallQueryArgs& args = c.args;
  const auto points = values_of<float>(c.points.points), query = values_of<float>(c.query.points);
  const CloudBatch& clouds = c.points.batch;
  std::vector<float> dist2(got.get<float>("dist2").size());
  std::vector<int32_t> idx(dist2.size()), count;
  const auto finite = [](const float* p) {
    return std::isfinite(p[0]) && std::isfinite(p[1]) && std::isfinite(p[2]);
  };
  for (int64_t row = 0; row < c.query.batch.total_rows(); ++row) {
    const int64_t b = row / c.query.batch.rows, m = row % c.query.batch.rows;
    const float* q = &query[row * 3];
    const bool exists = finite(q) && (c.query.lengths.empty() || m < c.query.lengths[b]);
    const int64_t end = c.points.lengths.empty() ? clouds.rows : c.points.lengths[b];
    for (int r = 0; r < args.radii; ++r) {
      const BallRadius& ball = args.radius[r];
      int64_t hits = 0, first = 0;
      const int64_t at = row * args.slots + ball.slot;
      for (int64_t i = 0; exists && i < end && hits < ball.k; ++i) {
        const float* p = &points[(b * clouds.rows + i) * 3];
        const float x = p[0] - q[0], y = p[1] - q[1], z = p[2] - q[2];
        const float d = std::fma(z, z, std::fma(x, x, y * y));
        if (!finite(p) || !(d <= ball.outer) || (d > args.core && d < ball.inner)) continue;
        if (hits == 0) first = i;
        idx[at + hits] = static_cast<int32_t>(i);
        dist2[at + hits++] = d;
      }
      count.push_back(static_cast<int32_t>(hits));
      for (; hits < ball.k; ++hits) idx[at + hits] = args.pad ? -1 : static_cast<int32_t>(first);
    }
  }
  CHECK_SAME(got.get<float>("dist2"), dist2);
  CHECK_SAME(got.get<int32_t>("idx"), idx);
  CHECK_SAME(got.get<int32_t>("count"), count);
}

void check(const Case& c) {
  INFO(c.name);
  const Outputs want = [&] {
    const Plan plan("ball_kernel", 0);
    return run_on(Where::kThread, c);
  }();
  if (!c.points.batch.packed) check_against_the_rule(c, want);
  for (const int kernel : {-1, 0, 1}) {
    CAPTURE(kernel);
    const Plan plan("ball_kernel", kernel);
    check_sides(c, want);
  }
}

Case batched(const std::string& name, int64_t clouds, int64_t points, int64_t queries, Cloud kind,
             const std::vector<float>& radii, const std::vector<int64_t>& ks) {
  Random random(points + static_cast<int>(kind));
  Case c;
  c.name = name;
  c.points = padded(make_cloud(kind, clouds * points, 3, random), clouds, points);
  c.query = padded(make_cloud(kind, clouds * queries, 3, random), clouds, queries);
  c.points.wide = c.query.wide = false;
  BallQueryArgs& args = c.args;
  args.counts = args.radii = static_cast<int>(radii.size());
  for (int r = 0; r < args.radii; ++r) {
    args.radius[r] = ball_radius(DType::kFloat, radii[r], nullptr, 0, 0, false);
    args.radius[r].k = ks[r];
    args.radius[r].slot = args.slots;
    args.slots += ks[r];
  }
  return c;
}

Case ragged(const std::string& name, const std::vector<int64_t>& offsets,
            const std::vector<int64_t>& query_offsets, int64_t points, int64_t queries) {
  Case c = batched(name, 1, points, queries, Cloud::kLattice, {1.5f}, {7});
  c.args.local_index = false;
  for (Clouds* clouds : {&c.points, &c.query}) {
    clouds->wide = clouds->batch.packed = true;
    clouds->batch.clouds = static_cast<int64_t>(offsets.size()) - 1;
  }
  c.points.offsets = offsets;
  c.query.offsets = query_offsets;
  return c;
}

TEST_CASE("balls of one radius") {
  for (const Cloud kind :
       {Cloud::kCube, Cloud::kLattice, Cloud::kNonFinite, Cloud::kEqual, Cloud::kScales}) {
    for (const int64_t points : {1, 33, 700, 2100}) {
      for (const float radius : {0.2f, 1.2f, 4.0f}) {
        CAPTURE(kind);
        check(batched(std::to_string(points) + " points", 2, points, 40, kind, {radius}, {16}));
      }
    }
  }
}

TEST_CASE("balls of several radii and sizes") {
  check(batched("several", 2, 900, 50, Cloud::kCube, {0.2f, 0.4f, 0.8f, 0.1f}, {16, 32, 128, 0}));
  check(batched("many hits", 1, 3000, 20, Cloud::kCube, {1.4f}, {512}));
  check(batched("more than cells sort", 1, 3000, 9, Cloud::kCube, {1.4f}, {600}));
  check(batched("many queries", 3, 300, 3000, Cloud::kCube, {0.4f}, {8}));
  check(batched("an infinite radius", 1, 100, 5, Cloud::kScales, {kInfinity}, {50}));
  Case shell = batched("a shell, padded", 2, 500, 30, Cloud::kLattice, {2.0f}, {9});
  shell.args.radius[0] = ball_radius(DType::kFloat, 2.0, nullptr, 1.0, 0.0, true);
  shell.args.radius[0].k = 9;
  shell.args.pad = true;
  shell.points.lengths = {0, 400};
  shell.query.lengths = {30, 11};
  check(shell);
}

TEST_CASE("balls in packed clouds") {
  check(ragged("ragged", {0, 0, 40, 41, 41, 200}, {0, 3, 9, 9, 15, 30}, 200, 30));
  check(ragged("gaps", {5, 20, 90}, {3, 10, 25}, 100, 40));
  for (const int kernel : {0, 1}) {
    const Plan plan("ball_kernel", kernel);
    const Case c = ragged("wrong offsets", {90, -4, 500, 7}, {9, 1, 90, 4}, 100, 40);
    check_sides(c, run_on(Where::kThread, c), /*values_count=*/false);
  }
}

// Against the ball query with room for all hits, which is tested above.
TEST_CASE("all neighbors within a radius") {
  for (Case c : {ragged("ragged", {0, 0, 40, 41, 41, 900}, {0, 3, 9, 9, 15, 30}, 900, 30),
                 ragged("no points", {0}, {0}, 0, 5), ragged("no queries", {0, 9}, {0, 0}, 9, 0),
                 ragged("wrong offsets", {90, -4, 500, 7}, {9, 1, 90, 4}, 100, 40)}) {
    const bool in_order = c.name != "wrong offsets";
    for (const float radius : {0.0f, 1.5f, 30.0f}) {
      const int64_t rows = c.query.batch.rows, room = c.points.batch.rows;
      c.args.radius[0] = ball_radius(DType::kFloat, radius, nullptr, 0, 0, false);
      c.args.radius[0].k = c.args.slots = room;
      const Outputs wide = run_on(Where::kThread, c);
      for (const int64_t capacity : {0, 100, 30000}) {
        const auto call = [&](Side& side) {
          RadiusNeighborsArgs args;
          args.ball = c.args;
          args.ball.points = c.points.on(side);
          args.ball.query = c.query.on(side);
          args.capacity = capacity;
          args.offsets = side.room<int64_t>("offsets", rows + 1);
          args.index = side.room<int32_t>("index", capacity);
          if (capacity != 100) args.dist2 = side.room<float>("dist2", capacity);
          args.count = side.room<int64_t>("count", 1);
          side.run(args);
        };
        const Outputs want = run_on(Where::kThread, call);
        for (const int kernel : {0, 1}) {
          const Plan plan("ball_kernel", kernel);
          check_sides(call, want, in_order);
        }
        if (!in_order) continue;
        std::vector<int64_t> offsets{0}, count{0};
        std::vector<int32_t> index;
        for (int64_t row = 0; row < rows; ++row) {
          const int32_t hits = wide.get<int32_t>("count")[row];
          for (int64_t j = 0; j < hits; ++j, ++count[0]) {
            if (count[0] < capacity) index.push_back(wide.get<int32_t>("idx")[row * room + j]);
          }
          offsets.push_back(static_cast<int64_t>(index.size()));
        }
        index.resize(capacity, -1);
        CHECK_SAME(want.get<int64_t>("offsets"), offsets);
        CHECK_SAME(want.get<int32_t>("index"), index);
        CHECK_SAME(want.get<int64_t>("count"), count);
      }
    }
  }
}

TEST_CASE("groups of points and their gradients") {
  constexpr int64_t kClouds = 2, kPoints = 50, kQueries = 9, kSlots = 300;
  constexpr int64_t kRows = kClouds * kQueries;
  for (const int64_t channels : {0, 1, 13, 64, 400}) {
    CAPTURE(channels);
    const bool features_first = channels == 13, normalize = channels == 64;
    Random random(channels);
    const auto p = narrowed<float>(make_cloud(Cloud::kCube, kClouds * kPoints, 3, random)),
               q = narrowed<float>(make_cloud(Cloud::kCube, kRows, 3, random)),
               f = narrowed<float>(random.uniforms(kClouds * kPoints * channels));
    std::vector<int32_t> idx(kRows * kSlots);
    for (int32_t& i : idx) i = static_cast<int32_t>(random.below(kPoints + 2)) - 1;
    const Outputs got = on_every_side([&](Side& side) {
      QueryAndGroupArgs args;
      args.points = padded({p.begin(), p.end()}, kClouds, kPoints).on(side);
      args.query = padded({q.begin(), q.end()}, kClouds, kQueries).on(side);
      args.features = side.put(f), args.channels = channels;
      args.idx = side.put(idx), args.slots = kSlots;
      args.features_first = features_first;
      if (normalize) args.radii = {2, {100, 300}, {0.3, 0.7}};
      args.grouped = side.room<float>("grouped", kRows * kSlots * args.columns());
      side.run(args);
      QueryAndGroupBackwardArgs back;
      back.grad = args.grouped;
      back.rows = kRows, back.slots = kSlots, back.columns = args.columns();
      back.first = args.first_axis(), back.radii = args.radii;
      back.grad_slots = side.room<float>("grad_slots", kRows * kSlots * 3);
      back.grad_query = side.room<float>("grad_query", kRows * 3);
      side.run(back);
    });
    std::vector<float> want(kRows * kSlots * (3 + channels));
    for (int64_t at = 0; at < kRows * kSlots; ++at) {
      const int64_t row = at / kSlots, i = idx[at], from = row / kQueries * kPoints + i;
      const bool inside = i >= 0 && i < kPoints;
      float* out = &want[at * (3 + channels)];
      for (int64_t axis = 0; axis < 3; ++axis) {
        float x = (inside ? p[from * 3 + axis] : 0.0f) - q[row * 3 + axis];
        if (normalize) x /= at % kSlots < 100 ? 0.3f : 0.7f;
        out[features_first ? channels + axis : axis] = x;
      }
      for (int64_t channel = 0; channel < channels; ++channel) {
        out[features_first ? channel : 3 + channel] = inside ? f[from * channels + channel] : 0.0f;
      }
    }
    CHECK_SAME(got.get<float>("grouped"), want);
  }
}

// Cast alone, one block more than 2^32 would come out as one block, and the launch would succeed.
TEST_CASE("too many blocks stay too many") {
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  CHECK(grid_x(kMost) == kMost);
  for (const int64_t blocks : {kMost + 1, (int64_t{1} << 32) + 1, (int64_t{1} << 62) + 1}) {
    CHECK(grid_x(blocks) == kMost + 1);
  }
}

}  // namespace
