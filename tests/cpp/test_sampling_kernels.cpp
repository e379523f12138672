// SPDX-License-Identifier: Apache-2.0
//
// Sampling kernels without torch: the host against a few plain lines that follow the contract,
// every kernel and launch plan of the device against the host.
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"
#include "csrc/kernels/sampling/furthest_point_sample_with_dist.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

// A call with the memory that its pointers refer to.
struct Case {
  std::string name;
  FpsArgs args;
  Clouds points;
  std::vector<int64_t> counts, out_offsets, start_idx;
  bool values_count = true;  // false: only memory safety is tested

  int64_t out_size() const {
    return points.batch.packed ? args.samples : points.batch.clouds * args.samples;
  }
  void operator()(Side& side) const {
    FpsArgs bound = args;
    bound.points = points.on(side);
    bound.counts = side.put(counts, true);
    bound.out_offsets = side.put(out_offsets, true);
    bound.start_idx = side.put(start_idx, true);
    const bool wide = points.batch.dtype == DType::kDouble;
    bound.idx = side.room<int32_t>("idx", out_size());
    bound.dist2 = side.room("dist2", wide ? DType::kDouble : DType::kFloat, out_size());
    side.run(bound);
  }
};

// The contract in its plainest form, for one batched cloud of at most three axes in fp32.
void check_against_definition(const Case& c, const Outputs& got) {
  const FpsArgs& args = c.args;
  const CloudBatch& clouds = c.points.batch;
  const auto points = values_of<float>(c.points.points);
  std::vector<int32_t> idx(c.out_size());
  std::vector<float> out(c.out_size());
  for (int64_t b = 0; b < clouds.clouds; ++b) {
    const auto clamp = [](int64_t x, int64_t high) { return x < 0 ? 0 : (x > high ? high : x); };
    const int64_t n =
        c.points.lengths.empty() ? clouds.rows : clamp(c.points.lengths[b], clouds.rows);
    int64_t samples = c.counts.empty() ? args.samples : clamp(c.counts[b], args.samples);
    if (n == 0) samples = 0;
    const float* q = points.data() + b * clouds.rows * 3;
    const TieRule tie = TieRule::make(clouds.rows, args.tie_block);
    std::vector<float> d(n, static_cast<float>(args.init_dist2));
    std::vector<bool> finite(n), candidate(n), selected(n, false);
    int64_t first = -1;
    for (int64_t i = 0; i < n; ++i) {
      const float x = q[3 * i], y = q[3 * i + 1], z = q[3 * i + 2];
      finite[i] = std::isfinite(x) && std::isfinite(y) && std::isfinite(z);
      candidate[i] =
          finite[i] && !(args.skip_origin && std::fma(z, z, std::fma(x, x, y * y)) <= 1e-3);
      if (candidate[i] && (first < 0 || tie.code(i) < tie.code(first))) first = i;
    }
    for (int64_t s = 0; s < args.samples; ++s) {
      int64_t chosen = -1;
      float at = 0.0f;
      if (s < samples && s == 0) {
        chosen = c.start_idx.empty() ? args.start : c.start_idx[b];
        at = kInfinity;
        if (chosen < 0 || chosen >= n || !finite[chosen]) chosen = first;
        if (chosen < 0) {
          if (args.repeat) chosen = 0;
          if (args.nonfinite_last) {
            chosen = 0;
            while (finite[chosen]) ++chosen;
          }
          if (!args.repeat) at = 0.0f;
        }
      } else if (s < samples) {
        for (int64_t i = 0; i < n; ++i) {
          if (!candidate[i] || (d[i] == 0.0f && selected[i] && !args.repeat)) continue;
          if (chosen < 0 || d[i] > d[chosen] ||
              (d[i] == d[chosen] && tie.code(i) < tie.code(chosen))) {
            chosen = i;
          }
        }
        if (chosen >= 0) at = d[chosen];
        if (chosen < 0 && args.repeat) chosen = 0;
        if (chosen < 0 && args.nonfinite_last) {
          for (int64_t i = 0; i < n && chosen < 0; ++i) {
            if (!finite[i] && !selected[i]) chosen = i;
          }
        }
      }
      idx[b * args.samples + s] = static_cast<int32_t>(chosen);
      out[b * args.samples + s] = at;
      if (chosen < 0) continue;
      selected[chosen] = true;
      if (!finite[chosen]) continue;
      for (int64_t i = 0; i < n; ++i) {
        const float dx = q[3 * i] - q[3 * chosen], dy = q[3 * i + 1] - q[3 * chosen + 1],
                    dz = q[3 * i + 2] - q[3 * chosen + 2];
        const float now = args.order == DistOrder::kPn2
            ? std::fma(dz, dz, std::fma(dx, dx, dy * dy))
            : std::fma(dz, dz, std::fma(dy, dy, dx * dx));
        if (now < d[i]) d[i] = now;
      }
    }
  }
  CHECK_SAME(got.get<int32_t>("idx"), idx);
  CHECK_SAME(got.get<float>("dist2"), out);
}

Case batched(Cloud kind, int64_t clouds, int64_t points, int64_t samples, int64_t dims, DType dtype,
             Random& random) {
  Case c;
  c.name = "cloud " + std::to_string(static_cast<int>(kind)) + " " + std::to_string(clouds) + "x" +
      std::to_string(points) + "->" + std::to_string(samples) + " D" + std::to_string(dims) +
      " dtype " + std::to_string(static_cast<int>(dtype));
  c.points = padded(make_cloud(kind, clouds * points, dims, random), clouds, points, dims, dtype);
  c.args.samples = samples;
  c.args.order = dims == 3 ? DistOrder::kPn2 : DistOrder::kLoop;
  return c;
}

void vary(Case& c, int variant, Random& random) {
  FpsArgs& args = c.args;
  const CloudBatch& clouds = c.points.batch;
  args.tie_block = (const int[]){1, 1024, 8, 512, 2}[variant % 5];
  args.repeat = variant % 3 == 1;
  args.nonfinite_last = !args.repeat && variant % 4 == 0;
  args.skip_origin = clouds.columns == 3 && variant % 7 == 2;
  if (clouds.columns == 3 && variant % 2) args.order = DistOrder::kLoop;
  if (variant % 11 == 3) args.init_dist2 = 0.5;
  if (variant % 5 == 4) args.start = variant;
  if (variant % 6 == 5) {
    args.starts = 1 + variant % 4;
    for (int64_t i = 0; i < clouds.clouds * args.starts; ++i) {
      c.start_idx.push_back(random.below(clouds.rows + 3) - 2);
    }
  }
  if (!clouds.packed && variant % 4 == 2) {
    for (int64_t b = 0; b < clouds.clouds; ++b) {
      c.points.lengths.push_back(random.below(clouds.rows + 4) - 1);
      c.counts.push_back(random.below(args.samples + 4) - 1);
    }
  }
  c.name += " variant " + std::to_string(variant);
}

Case ragged(std::vector<int64_t> sizes, Cloud kind, Random& random) {
  int64_t total = 3;
  for (const int64_t size : sizes) total += size;
  Case c = batched(kind, 1, total, 0, 3, DType::kFloat, random);
  c.name = "ragged, cloud " + std::to_string(static_cast<int>(kind));
  c.points.batch.packed = true;
  c.points.batch.clouds = static_cast<int64_t>(sizes.size());
  c.args.local_index = sizes.size() % 2 == 0;
  c.points.offsets = {1};
  c.out_offsets = {2};
  for (const int64_t size : sizes) {
    c.points.offsets.push_back(c.points.offsets.back() + size);
    c.out_offsets.push_back(c.out_offsets.back() + (size > 1000 ? 200 : size / 2 + 1));
    c.name += " " + std::to_string(size);
    if (c.name.size() > 80) c.name.resize(80);
  }
  c.args.samples = c.out_offsets.back() + 5;
  return c;
}

constexpr Cloud kKinds[] = {Cloud::kCube,      Cloud::kLattice, Cloud::kGrid, Cloud::kDuplicates,
                            Cloud::kEqual,     Cloud::kLine,    Cloud::kHuge, Cloud::kOrigin,
                            Cloud::kNonFinite, Cloud::kAllNan};

// body(case, whether every block of the device is worth a try)
template <class Body>
void each_case(const Body& check) {
  Random random(7);
  int variant = 0;
  for (const Cloud kind : kKinds) {
    for (const int64_t points : {1, 31, 33, 200, 1025}) {
      Case c = batched(kind, 3, points, points / 2 + 3, 3, DType::kFloat, random);
      vary(c, variant++, random);
      check(c, points <= 200);
    }
    Case all = batched(kind, 2, 65, 80, 3, DType::kFloat, random);
    vary(all, variant++, random);
    check(all, false);
  }
  for (const DType dtype : {DType::kHalf, DType::kBFloat16, DType::kFloat, DType::kDouble}) {
    for (const int64_t dims : {1, 2, 3, 5}) {
      Case c = batched(Cloud::kNonFinite, 2, 150, 60, dims, dtype, random);
      vary(c, variant++, random);
      check(c, false);
    }
  }
  for (const int64_t points : {4096, 8192, 8193, 9001}) {
    Case c = batched(points % 2 ? Cloud::kCube : Cloud::kLattice, 2, points, 120, 3, DType::kFloat,
                     random);
    vary(c, variant++, random);
    check(c, false);
  }
  // Samples by the hundred, and more ties than a shortlist or a buffer holds.
  for (const Cloud kind : {Cloud::kCube, Cloud::kLattice, Cloud::kGrid, Cloud::kLine}) {
    for (const int64_t points : {2000, 4000, 8000, 12000}) {
      Case c = batched(kind, 1, points, points / 5, 3, DType::kFloat, random);
      c.args.tie_block = points % 3 ? 1024 : 1;
      check(c, false);
    }
  }
  for (const int64_t points : {0, 5}) {
    for (const int64_t samples : {0, 4}) {
      check(batched(Cloud::kCube, 2, points, samples, 3, DType::kFloat, random), false);
    }
  }
  check(batched(Cloud::kCube, 0, 5, 4, 3, DType::kFloat, random), false);
  check(batched(Cloud::kEqual, 1, 9000, 9100, 3, DType::kFloat, random), false);
  for (const Cloud kind : {Cloud::kCube, Cloud::kNonFinite}) {
    Case mixed = ragged({5, 0, 300, 9000, 1, 1500, 40}, kind, random);
    vary(mixed, 6 * static_cast<int>(kind), random);
    check(mixed, false);
    Case one = ragged({9500}, kind, random);
    vary(one, 1, random);
    check(one, false);
  }
  check(ragged({}, Cloud::kCube, random), false);
  check(ragged(std::vector<int64_t>(600, 16), Cloud::kCube, random), false);
  // Offsets in disorder: clouds overlap, so values are unspecified and only memory safety counts.
  Case disorder = ragged({60, 70, 80}, Cloud::kCube, random);
  disorder.points.offsets = {-4, 500, 20, 1000};
  disorder.out_offsets = {-3, 0, 0, 900};
  disorder.values_count = false;
  check(disorder, false);
  Case large = ragged({9000, 9500, 9100}, Cloud::kCube, random);
  large.points.offsets = {0, 20000, 5000, 27000};
  large.out_offsets = {0, 300, 150, 500};
  large.values_count = false;
  check(large, false);
}

TEST_CASE("samples on the host") {
  each_case([](const Case& c, bool) {
    INFO(c.name);
    const CloudBatch& clouds = c.points.batch;
    const Outputs got = run_on(Where::kThread, c);
    if (!clouds.packed && clouds.dtype == DType::kFloat && clouds.columns == 3 &&
        c.args.starts == 1) {
      check_against_definition(c, got);
    }
    for (const int instructions : {0, 1, 2}) {
      CAPTURE(instructions);
      const Plan plan("fps_cpu", instructions);
      check_side(Where::kThreads, c, got, c.values_count);
    }
  });
}

TEST_CASE("samples on the device") {
  if (!has_device()) return;
  int cases = 0;
  each_case([&](const Case& c, bool every_block) {
    if (quick && (++cases % 3 || c.points.batch.rows * c.args.samples > 600000)) return;
    INFO(c.name);
    const Outputs want = run_on(Where::kThread, c);
    const auto check = [&](int64_t kernel, int64_t threads, int64_t points, int64_t members) {
      INFO("kernel ", kernel, ", ", threads, " threads x ", points, ", members ", members);
      const Plan kernel_plan("fps_kernel", kernel), threads_plan("fps_threads", threads),
          points_plan("fps_points_per_thread", points), members_plan("fps_members", members);
      check_side(Where::kDevice, c, want, c.values_count);
    };
    check(-1, -1, -1, -1);
    check(1, -1, -1, -1);  // lazy
    check(1, -1, -1, 1);  // one block
    for (const int members : {1, 5, 12}) check(1, 64, 1, members);  // a buffer of 64, tiles of 32
    check(2, -1, -1, -1);  // generic
    for (const int threads : {32, 64, 128, 256, 512}) {
      for (const int points : {1, 2, 4, 8, 16}) {
        if (every_block && !quick) check(0, threads, points, -1);
      }
    }
  });
}

TEST_CASE("samples over given distances") {
  constexpr int64_t kClouds = 3, kSamples = 40;
  for (const int64_t points : {1, 33, 1500}) {
    for (const int tie_block : {1, 1024}) {
      Random random(points);
      std::vector<float> distances(kClouds * points * points);
      for (float& d : distances) d = static_cast<float>(random.below(50)) - 9.0f;
      distances[distances.size() / 2] = kNan;
      const std::vector<int64_t> lengths{points, points / 2, 0};
      const Outputs got = on_every_side([&](Side& side) {
        FpsWithDistArgs args;
        args.distances.data = side.put(distances);
        args.distances.clouds = kClouds;
        args.distances.rows = args.distances.columns = args.distances.row_stride = points;
        args.distances.cloud_stride = points * points;
        args.distances.lengths = side.put(lengths, true);
        args.samples = kSamples, args.start = 3, args.tie_block = tie_block;
        args.idx = side.room<int32_t>("idx", kClouds * kSamples);
        side.run(args);
      });
      const TieRule tie = TieRule::make(points, tie_block);
      std::vector<int32_t> idx(kClouds * kSamples, -1);
      for (int64_t b = 0; b < kClouds; ++b) {
        std::vector<float> least(lengths[b], kInfinity);
        int64_t last = 3 < lengths[b] ? 3 : 0;
        for (int64_t s = 0; s < kSamples && lengths[b] > 0; ++s) {
          idx[b * kSamples + s] = static_cast<int32_t>(last);
          const float* row = &distances[(b * points + last) * points];
          last = 0;
          for (int64_t i = 0; i < lengths[b]; ++i) {
            least[i] = std::fmin(least[i], row[i]);
            if (least[i] > least[last] ||
                (least[i] == least[last] && tie.code(i) < tie.code(last))) {
              last = i;
            }
          }
        }
      }
      CHECK_SAME(got.get<int32_t>("idx"), idx);
    }
  }
}

}  // namespace
