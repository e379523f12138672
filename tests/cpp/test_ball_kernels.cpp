// SPDX-License-Identifier: Apache-2.0
//
// The ball query and query_and_group without torch. Host results against the rule written plainly;
// every plan, and with a GPU every kernel, against the host, bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/neighbors/ball_query/ball_query.h"
#include "csrc/kernels/neighbors/query_and_group.h"
#include "tests/cpp/check.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

#ifdef TORCHVOX_CUDA
const bool kDevice = has_device();
#else
constexpr bool kDevice = false;
#endif

// A call with the memory that its pointers refer to; everything in float32.
struct Case {
  std::string name;
  BallQueryArgs args;
  std::vector<float> points, query;
  std::vector<int32_t> lengths, query_lengths;
  std::vector<int64_t> offsets, query_offsets;
};
struct Result {
  std::vector<float> dist2;
  std::vector<int32_t> idx, count;

  explicit Result(const BallQueryArgs& args)
      : dist2(args.rows() * args.slots, -5.0f),
        idx(args.rows() * args.slots, -5),
        count(args.rows() * args.counts, -5) {}
};

BallQueryArgs bound(const Case& c, Result& out) {
  BallQueryArgs args = c.args;
  args.points.data = c.points.data();
  args.query.data = c.query.data();
  if (!c.lengths.empty()) args.points.lengths = {c.lengths.data(), false};
  if (!c.query_lengths.empty()) args.query.lengths = {c.query_lengths.data(), false};
  if (!c.offsets.empty()) args.points.offsets = {c.offsets.data(), true};
  if (!c.query_offsets.empty()) args.query.offsets = {c.query_offsets.data(), true};
  args.dist2 = out.dist2.data();
  args.idx = out.idx.data();
  args.count = out.count.data();
  return args;
}

void compare(const Result& got, const Result& want, const std::string& what) {
  check_same(got.dist2, want.dist2, what + ", dist2");
  check_same(got.idx, want.idx, what + ", idx");
  check_same(got.count, want.count, what + ", count");
}

// The rule for batched clouds of three axes, pn2.
void check_against_the_rule(const Case& c, const Result& got) {
  Result want(c.args);
  const BallQueryArgs& args = c.args;
  const auto finite = [](const float* p) {
    return std::isfinite(p[0]) && std::isfinite(p[1]) && std::isfinite(p[2]);
  };
  for (int64_t row = 0; row < args.rows(); ++row) {
    const int64_t b = row / args.query.rows, m = row % args.query.rows;
    const float* q = &c.query[row * 3];
    const bool exists = finite(q) && (c.query_lengths.empty() || m < c.query_lengths[b]);
    const int64_t points = c.lengths.empty() ? args.points.rows : c.lengths[b];
    for (int r = 0; r < args.radii; ++r) {
      const BallRadius& ball = args.radius[r];
      int64_t hits = 0, first = 0;
      const int64_t at = row * args.slots + ball.slot;
      for (int64_t i = 0; exists && i < points && hits < ball.k; ++i) {
        const float* p = &c.points[(b * args.points.rows + i) * 3];
        const float x = p[0] - q[0], y = p[1] - q[1], z = p[2] - q[2];
        const float d = std::fma(z, z, std::fma(x, x, y * y));
        if (!finite(p) || !(d <= ball.outer) || (d > args.core && d < ball.inner)) continue;
        if (hits == 0) first = i;
        want.idx[at + hits] = static_cast<int32_t>(i);
        want.dist2[at + hits++] = d;
      }
      want.count[row * args.counts + r] = static_cast<int32_t>(hits);
      for (; hits < ball.k; ++hits) {
        want.idx[at + hits] = args.pad ? -1 : static_cast<int32_t>(first);
        want.dist2[at + hits] = 0;
      }
    }
  }
  compare(got, want, c.name + ", the rule");
}

#ifdef TORCHVOX_CUDA
Result on_device(const Case& c) {
  Result out(c.args);
  BallQueryArgs args = bound(c, out);
  const DeviceBuffer<float> points(c.points), query(c.query), dist2(out.dist2);
  const DeviceBuffer<int32_t> idx(out.idx), count(out.count), lengths(c.lengths),
      query_lengths(c.query_lengths);
  const DeviceBuffer<int64_t> offsets(c.offsets), query_offsets(c.query_offsets);
  args.points.data = points.data();
  args.query.data = query.data();
  args.points.lengths.data = lengths.data();
  args.query.lengths.data = query_lengths.data();
  args.points.offsets.data = offsets.data();
  args.query.offsets.data = query_offsets.data();
  args.dist2 = dist2.data();
  args.idx = idx.data();
  args.count = count.data();
  run_on_device(args);
  out.dist2 = dist2.host();
  out.idx = idx.host();
  out.count = count.host();
  return out;
}
#else
Result on_device(const Case& c) { return Result(c.args); }
#endif

void test(const Case& c) {
  set_plan_override("ball_kernel", 0);
  Result want(c.args);
  run_on_host(bound(c, want));
  if (!c.args.points.packed && c.args.order == DistOrder::kPn2) check_against_the_rule(c, want);
  for (const int plan : {-1, 0, 1}) {
    set_plan_override("ball_kernel", plan);
    const std::string what = c.name + ", plan " + std::to_string(plan);
    Result got(c.args);
    run_on_host(bound(c, got), backward_for);
    compare(got, want, what + ", host");
    if (kDevice) compare(on_device(c), want, what + ", device");
  }
  set_plan_override("ball_kernel", kAutomatic);
}

std::vector<float> cloud(int64_t points, int kind, Random& random) {
  std::vector<float> out(points * 3);
  for (float& x : out) {
    x = random.uniform(0.0f, 1.0f);
    if (kind == 1) x = static_cast<float>(random.below(6));
    if (kind == 2 && random.below(20) == 0) x = random.below(2) ? NAN : INFINITY;
    if (kind == 3) x = 0.25f;
    if (kind == 4) x *= std::pow(10.0f, static_cast<float>(random.below(40) - 20));
  }
  return out;
}

Case batched(const std::string& name, int64_t clouds, int64_t points, int64_t queries, int kind,
             std::vector<float> radii, std::vector<int64_t> ks) {
  Random random(points + kind);
  Case c;
  c.name = name;
  c.points = cloud(clouds * points, kind, random);
  c.query = cloud(clouds * queries, kind, random);
  BallQueryArgs& args = c.args;
  args.points = padded(clouds, points);
  args.query = padded(clouds, queries);
  args.radii = static_cast<int>(radii.size());
  args.counts = args.radii;
  for (int r = 0; r < args.radii; ++r) {
    args.radius[r] = ball_radius(DType::kFloat, radii[r], nullptr, 0, 0, false);
    args.radius[r].k = ks[r];
    args.radius[r].slot = args.slots;
    args.slots += ks[r];
  }
  return c;
}

Case ragged(const std::string& name, std::vector<int64_t> offsets,
            std::vector<int64_t> query_offsets, int64_t points, int64_t queries) {
  Case c = batched(name, 1, points, queries, 1, {1.5f}, {7});
  c.args.points.packed = c.args.query.packed = true;
  c.args.local_index = false;
  c.args.points.clouds = c.args.query.clouds = static_cast<int64_t>(offsets.size()) - 1;
  c.offsets = offsets;
  c.query_offsets = query_offsets;
  return c;
}

void test_ball_queries() {
  const char* kinds[] = {"cube", "lattice", "not finite", "one place", "all scales"};
  for (int kind = 0; kind < 5; ++kind) {
    for (const int64_t points : {1, 33, 700, 2100}) {
      for (const float radius : {0.1f, 0.6f, 2.0f}) {
        const std::string name = std::string(kinds[kind]) + " of " + std::to_string(points);
        test(batched(name, 2, points, 40, kind, {radius}, {16}));
      }
    }
  }
  test(batched("several radii", 2, 900, 50, 0, {0.1f, 0.2f, 0.4f, 0.05f}, {16, 32, 128, 0}));
  test(batched("many hits", 1, 3000, 20, 0, {0.7f}, {512}));
  test(batched("more than cells sort", 1, 3000, 9, 0, {0.7f}, {600}));
  test(batched("many queries", 3, 300, 3000, 0, {0.2f}, {8}));
  Case c = batched("a shell, padded", 2, 500, 30, 1, {2.0f}, {9});
  c.args.radius[0] = ball_radius(DType::kFloat, 2.0, nullptr, 1.0, 0.0, true);
  c.args.radius[0].k = 9;
  c.args.pad = true;
  c.lengths = {0, 400};
  c.query_lengths = {30, 11};
  test(c);
  c = batched("an infinite radius", 1, 100, 5, 4, {INFINITY}, {50});
  test(c);
  test(ragged("ragged", {0, 0, 40, 41, 41, 200}, {0, 3, 9, 9, 15, 30}, 200, 30));
  test(ragged("gaps", {5, 20, 90}, {3, 10, 25}, 100, 40));
  Case wrong = ragged("wrong offsets", {90, -4, 500, 7}, {9, 1, 90, 4}, 100, 40);
  for (const int plan : {0, 1}) {  // only memory safety
    set_plan_override("ball_kernel", plan);
    Result got(wrong.args);
    run_on_host(bound(wrong, got));
    if (kDevice) on_device(wrong);
  }
  set_plan_override("ball_kernel", kAutomatic);
}

// ------------------------------------------------------------------------------ groups

void test_groups(int64_t channels, bool features_first, bool normalize) {
  Random random(channels);
  const int64_t clouds = 2, points = 50, queries = 9, slots = 300;
  std::vector<float> p = cloud(clouds * points, 0, random), q = cloud(clouds * queries, 0, random);
  std::vector<float> f(clouds * points * channels);
  for (float& x : f) x = random.uniform(-1.0f, 1.0f);
  std::vector<int32_t> idx(clouds * queries * slots);
  for (int32_t& i : idx) i = static_cast<int32_t>(random.below(points + 2)) - 1;
  QueryAndGroupArgs args;
  args.points = padded(clouds, points), args.query = padded(clouds, queries);
  args.points.data = p.data(), args.query.data = q.data();
  args.features = f.data(), args.idx = idx.data(), args.slots = slots;
  args.channels = channels;
  args.features_first = features_first;
  if (normalize) args.radii = {2, {100, 300}, {0.3, 0.7}};
  const int64_t columns = args.columns(), rows = clouds * queries;
  std::vector<float> grouped(rows * slots * columns, -5.0f), want = grouped;
  args.grouped = grouped.data();
  run_on_host(args, backward_for);
  for (int64_t at = 0; at < rows * slots; ++at) {
    const int64_t row = at / slots, b = row / queries, i = idx[at];
    const bool inside = i >= 0 && i < points;
    float* out = &want[at * columns];
    for (int64_t axis = 0; axis < 3; ++axis) {
      float x = (inside ? p[(b * points + i) * 3 + axis] : 0.0f) - q[row * 3 + axis];
      if (normalize) x /= at % slots < 100 ? 0.3f : 0.7f;
      out[features_first ? channels + axis : axis] = x;
    }
    for (int64_t channel = 0; channel < channels; ++channel) {
      out[features_first ? channel : 3 + channel] =
          inside ? f[(b * points + i) * channels + channel] : 0.0f;
    }
  }
  const std::string name = "groups of " + std::to_string(channels) + " channels";
  check_same(grouped, want, name);

  QueryAndGroupBackwardArgs back;
  back.grad = grouped.data();
  back.rows = rows, back.slots = slots, back.columns = columns;
  back.first = features_first ? channels : 0;
  back.radii = args.radii;
  std::vector<float> grad_slots(rows * slots * 3), grad_query(rows * 3);
  back.grad_slots = grad_slots.data(), back.grad_query = grad_query.data();
  run_on_host(back, backward_for);
#ifdef TORCHVOX_CUDA
  if (!kDevice) return;
  const DeviceBuffer<float> dp(p), dq(q), df(f), dg(grouped), ds(grad_slots), dr(grad_query);
  const DeviceBuffer<int32_t> di(idx);
  dg.fill(0), ds.fill(0), dr.fill(0);
  args.points.data = dp.data(), args.query.data = dq.data(), args.features = df.data();
  args.idx = di.data(), args.grouped = dg.data();
  run_on_device(args);
  check_same(dg.host(), want, name + ", device");
  back.grad = dg.data(), back.grad_slots = ds.data(), back.grad_query = dr.data();
  run_on_device(back);
  check_same(ds.host(), grad_slots, name + ", gradient of slots");
  check_same(dr.host(), grad_query, name + ", gradient of queries");
#endif
}

// Cast alone, one block more than 2^32 would come out as one block, and the launch would succeed.
void test_too_many_blocks() {
  const int64_t most = (int64_t{1} << 31) - 1;
  check(grid_x(most) == most, "as many blocks as a grid can have");
  for (const int64_t blocks : {most + 1, (int64_t{1} << 32) + 1, (int64_t{1} << 62) + 1}) {
    check(grid_x(blocks) == most + 1, "too many blocks");
  }
}

}  // namespace

int main() {
  test_too_many_blocks();
  test_ball_queries();
  for (const int64_t channels : {0, 1, 13, 64, 400}) {
    test_groups(channels, channels == 13, channels == 64);
  }
  return finish("test_ball_kernels");
}
