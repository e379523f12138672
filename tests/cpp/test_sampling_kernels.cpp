// SPDX-License-Identifier: Apache-2.0
//
// Sampling kernels without torch. Host results against a few plain lines that follow the contract;
// with a GPU, every kernel and launch plan against the host, bit for bit. `--bench` times graph
// replays.
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/sampling/fps/cloud.h"
#include "csrc/kernels/sampling/fps/furthest_point_sample.h"
#include "tests/cpp/device_buffers.h"
#include "tests/cpp/store.h"

using namespace torchvox;

namespace {

int failures = 0;

enum class Cloud {
  kCube,
  kLattice,
  kGrid,
  kDuplicates,
  kEqual,
  kLine,
  kHuge,
  kOrigin,
  kNonFinite,
  kAllNan
};
constexpr Cloud kClouds[] = {Cloud::kCube,      Cloud::kLattice, Cloud::kGrid, Cloud::kDuplicates,
                             Cloud::kEqual,     Cloud::kLine,    Cloud::kHuge, Cloud::kOrigin,
                             Cloud::kNonFinite, Cloud::kAllNan};

std::vector<double> make_cloud(Cloud kind, int64_t points, int64_t dims, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  std::vector<double> out(points * dims);
  for (int64_t i = 0; i < points; ++i) {
    for (int64_t axis = 0; axis < dims; ++axis) {
      double x = static_cast<float>(unit(random));
      switch (kind) {
        case Cloud::kLattice: x = static_cast<int>(random() % 5); break;
        case Cloud::kGrid: x = axis == 0 ? i / 400 : (axis == 1 ? i / 20 % 20 : i % 20); break;
        case Cloud::kDuplicates: x = static_cast<int>(random() % 2); break;
        case Cloud::kEqual: x = 0.25; break;
        case Cloud::kLine: x = axis == 0 ? x : 0.0; break;
        case Cloud::kHuge: x = static_cast<float>(x * 3e38); break;
        case Cloud::kOrigin: x *= 0.05; break;
        case Cloud::kNonFinite: x = random() % 8 == 0 ? (random() % 2 ? NAN : INFINITY) : x; break;
        case Cloud::kAllNan: x = NAN; break;
        case Cloud::kCube: break;
      }
      out[i * dims + axis] = x;
    }
  }
  return out;
}

// A call with the memory that its pointers refer to.
struct FpsCase {
  std::string name;
  FpsArgs args;
  std::vector<uint8_t> points;
  std::vector<int64_t> lengths, counts, offsets, out_offsets, start_idx;

  int64_t out_size() const {
    return args.points.packed ? args.samples : args.points.clouds * args.samples;
  }
  int64_t dist_bytes() const { return args.points.dtype == DType::kDouble ? 8 : 4; }
  bool values_count = true;  // false: only memory safety is tested
};

struct FpsResult {
  std::vector<uint8_t> idx, dist2;
  bool operator==(const FpsResult& other) const { return idx == other.idx && dist2 == other.dist2; }
};

FpsArgs bind(const FpsCase& c, DeviceBuffers* device, FpsResult& result) {
  FpsArgs args = c.args;
  const auto place = [&](const auto& values) -> const void* {
    if (values.empty()) return nullptr;
    return device ? device->copy(values) : values.data();
  };
  args.points.data = place(c.points);
  args.points.lengths = {place(c.lengths), true};
  args.counts = {place(c.counts), true};
  args.points.offsets = {place(c.offsets), true};
  args.out_offsets = {place(c.out_offsets), true};
  args.start_idx = {place(c.start_idx), true};
  result.idx.assign(c.out_size() * 4, 0xab);
  result.dist2.assign(c.out_size() * c.dist_bytes(), 0xab);
  args.idx = static_cast<int32_t*>(device ? device->copy(result.idx) : result.idx.data());
  args.dist2 = device ? device->copy(result.dist2) : result.dist2.data();
  return args;
}

FpsResult on_host(const FpsCase& c) {
  FpsResult result;
  const FpsArgs args = bind(c, nullptr, result);
  run_cpu(args, nullptr, serial_for);
  return result;
}

void report(const FpsCase& c, const std::string& what, const FpsResult& got,
            const FpsResult& want) {
  ++failures;
  if (failures > 20) return;
  const auto* a = reinterpret_cast<const int32_t*>(got.idx.data());
  const auto* b = reinterpret_cast<const int32_t*>(want.idx.data());
  int64_t at = 0;
  while (at < c.out_size() && a[at] == b[at]) ++at;
  if (at < c.out_size()) {
    std::printf("FAIL %s, %s: idx[%lld] is %d, not %d\n", c.name.c_str(), what.c_str(),
                static_cast<long long>(at), a[at], b[at]);
  } else {
    std::printf("FAIL %s, %s: dist2 differs\n", c.name.c_str(), what.c_str());
  }
}

// The contract in its plainest form, for one batched cloud of at most three axes in fp32.
void check_against_definition(const FpsCase& c) {
  const FpsArgs& args = c.args;
  if (args.points.packed || args.points.dtype != DType::kFloat || args.starts != 1 ||
      args.points.columns != 3)
    return;
  const FpsResult got = on_host(c);
  FpsResult want = got;
  auto* idx = reinterpret_cast<int32_t*>(want.idx.data());
  auto* out = reinterpret_cast<float*>(want.dist2.data());
  const auto* p = reinterpret_cast<const float*>(c.points.data());
  for (int64_t b = 0; b < args.points.clouds; ++b) {
    const auto clamp = [](int64_t x, int64_t high) { return x < 0 ? 0 : (x > high ? high : x); };
    const int64_t n = c.lengths.empty() ? args.points.rows : clamp(c.lengths[b], args.points.rows);
    int64_t samples = c.counts.empty() ? args.samples : clamp(c.counts[b], args.samples);
    if (n == 0) samples = 0;
    const float* q = p + b * args.points.rows * 3;
    const TieRule tie = TieRule::make(args.points.rows, args.tie_block);
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
        at = INFINITY;
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
  if (!(got == want)) report(c, "host against the definition", got, want);
}

#ifdef TORCHVOX_CUDA
FpsResult on_device(const FpsCase& c, const Target& target) {
  DeviceBuffers device;
  FpsResult result;
  const FpsArgs args = bind(c, &device, result);
  CudaContext context;
  context.target = target;
  const cudaError_t status = launch(args, device.allocate(workspace_bytes(args, target)), context);
  if (status != cudaSuccess) {
    std::printf("FAIL %s: %s\n", c.name.c_str(), cudaGetErrorString(status));
    ++failures;
    return result;
  }
  device.read(args.idx, result.idx);
  device.read(args.dist2, result.dist2);
  return result;
}

void check_on_device(const FpsCase& c, const Target& target, bool every_block) {
  const FpsResult want = on_host(c);
  const auto check = [&](const std::string& plan, int64_t kernel, int64_t threads, int64_t points,
                         int64_t members = -1) {
    set_plan_override("fps_members", members);
    set_plan_override("fps_kernel", kernel);
    set_plan_override("fps_threads", threads);
    set_plan_override("fps_points_per_thread", points);
    const FpsResult got = on_device(c, target);
    if (c.values_count && !(got == want)) report(c, plan, got, want);
  };
  check("automatic", -1, -1, -1);
  check("lazy", 1, -1, -1);
  check("lazy, one block", 1, -1, -1, 1);
  check("lazy, one block, buffer of 64, tiles of 32", 1, 64, 1, 1);
  check("lazy, five blocks, buffer of 64, tiles of 32", 1, 64, 1, 5);
  check("lazy, twelve blocks, buffer of 64, tiles of 32", 1, 64, 1, 12);
  check("generic", 2, -1, -1);
  if (every_block) {
    for (const int threads : {32, 64, 128, 256, 512}) {
      for (const int points : {1, 2, 4, 8, 16}) {
        check("block " + std::to_string(threads) + " x " + std::to_string(points), 0, threads,
              points);
      }
    }
  }
  for (const char* plan : {"fps_kernel", "fps_threads", "fps_points_per_thread", "fps_members"}) {
    set_plan_override(plan, kAutomatic);
  }
}
#endif

FpsCase batched(Cloud kind, int64_t clouds, int64_t points, int64_t samples, int64_t dims,
                DType dtype, std::mt19937& random) {
  FpsCase c;
  c.name = "cloud " + std::to_string(static_cast<int>(kind)) + " " + std::to_string(clouds) + "x" +
      std::to_string(points) + "->" + std::to_string(samples) + " D" + std::to_string(dims) +
      " dtype " + std::to_string(static_cast<int>(dtype));
  c.points = store(make_cloud(kind, clouds * points, dims, random), dtype);
  c.args.points = padded(clouds, points, dims, dtype);
  c.args.samples = samples;
  c.args.order = dims == 3 ? DistOrder::kPn2 : DistOrder::kLoop;
  return c;
}

void vary(FpsCase& c, int variant, std::mt19937& random) {
  FpsArgs& args = c.args;
  args.tie_block = (const int[]){1, 1024, 8, 512, 2}[variant % 5];
  args.repeat = variant % 3 == 1;
  args.nonfinite_last = !args.repeat && variant % 4 == 0;
  args.skip_origin = args.points.columns == 3 && variant % 7 == 2;
  if (args.points.columns == 3 && variant % 2) args.order = DistOrder::kLoop;
  if (variant % 11 == 3) args.init_dist2 = 0.5;
  if (variant % 5 == 4) args.start = variant;
  if (variant % 6 == 5) {
    args.starts = 1 + variant % 4;
    for (int64_t i = 0; i < args.points.clouds * args.starts; ++i) {
      c.start_idx.push_back(static_cast<int64_t>(random() % (args.points.rows + 3)) - 2);
    }
  }
  if (!args.points.packed && variant % 4 == 2) {
    for (int64_t b = 0; b < args.points.clouds; ++b) {
      c.lengths.push_back(static_cast<int64_t>(random() % (args.points.rows + 4)) - 1);
      c.counts.push_back(static_cast<int64_t>(random() % (args.samples + 4)) - 1);
    }
  }
  c.name += " variant " + std::to_string(variant);
}

FpsCase ragged(std::vector<int64_t> sizes, Cloud kind, std::mt19937& random) {
  int64_t total = 3;
  for (const int64_t size : sizes) total += size;
  FpsCase c = batched(kind, 1, total, 0, 3, DType::kFloat, random);
  c.name = "ragged, cloud " + std::to_string(static_cast<int>(kind));
  c.args.points.packed = true;
  c.args.points.clouds = static_cast<int64_t>(sizes.size());
  c.args.local_index = sizes.size() % 2 == 0;
  c.offsets = {1};
  c.out_offsets = {2};
  for (const int64_t size : sizes) {
    c.offsets.push_back(c.offsets.back() + size);
    c.out_offsets.push_back(c.out_offsets.back() + (size > 1000 ? 200 : size / 2 + 1));
    c.name += " " + std::to_string(size);
    if (c.name.size() > 80) c.name.resize(80);
  }
  c.args.samples = c.out_offsets.back() + 5;
  return c;
}

template <class Check>
void each_fps_case(Check check) {
  std::mt19937 random(7);
  int variant = 0;
  for (const Cloud kind : kClouds) {
    for (const int64_t points : {1, 31, 33, 200, 1025}) {
      FpsCase c = batched(kind, 3, points, points / 2 + 3, 3, DType::kFloat, random);
      vary(c, variant++, random);
      check(c, points <= 200);
    }
    FpsCase all = batched(kind, 2, 65, 80, 3, DType::kFloat, random);
    vary(all, variant++, random);
    check(all, false);
  }
  for (const DType dtype : {DType::kHalf, DType::kBFloat16, DType::kFloat, DType::kDouble}) {
    for (const int64_t dims : {1, 2, 3, 5}) {
      FpsCase c = batched(Cloud::kNonFinite, 2, 150, 60, dims, dtype, random);
      vary(c, variant++, random);
      check(c, false);
    }
  }
  for (const int64_t points : {4096, 8192, 8193, 9001}) {
    FpsCase c = batched(points % 2 ? Cloud::kCube : Cloud::kLattice, 2, points, 120, 3,
                        DType::kFloat, random);
    vary(c, variant++, random);
    check(c, false);
  }
  // Samples by the hundred, and more ties than a shortlist or a buffer holds.
  for (const Cloud kind : {Cloud::kCube, Cloud::kLattice, Cloud::kGrid, Cloud::kLine}) {
    for (const int64_t points : {2000, 4000, 8000, 12000}) {
      FpsCase c = batched(kind, 1, points, points / 5, 3, DType::kFloat, random);
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
    FpsCase mixed = ragged({5, 0, 300, 9000, 1, 1500, 40}, kind, random);
    vary(mixed, 6 * static_cast<int>(kind), random);
    check(mixed, false);
    FpsCase one = ragged({9500}, kind, random);
    vary(one, 1, random);
    check(one, false);
  }
  check(ragged({}, Cloud::kCube, random), false);
  check(ragged(std::vector<int64_t>(600, 16), Cloud::kCube, random), false);
  // Offsets in disorder: clouds overlap, so values are unspecified and only memory safety counts.
  FpsCase disorder = ragged({60, 70, 80}, Cloud::kCube, random);
  disorder.offsets = {-4, 500, 20, 1000};
  disorder.out_offsets = {-3, 0, 0, 900};
  disorder.values_count = false;
  check(disorder, false);
  FpsCase large = ragged({9000, 9500, 9100}, Cloud::kCube, random);
  large.offsets = {0, 20000, 5000, 27000};
  large.out_offsets = {0, 300, 150, 500};
  large.values_count = false;
  check(large, false);
}

void bench();

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--bench") {
    bench();
    return 0;
  }
  // racecheck watches every shared access: --quick leaves out the cases that take it minutes.
  [[maybe_unused]] const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  for (const int64_t instructions : {0, 1, 2}) {
    set_plan_override("fps_cpu", instructions);
    each_fps_case([](const FpsCase& c, bool) { check_against_definition(c); });
  }
  set_plan_override("fps_cpu", kAutomatic);
  Target target;
  if (const bool gpu = find_device(target); !gpu) {
    std::printf("no GPU: host only\n");
  } else {
#ifdef TORCHVOX_CUDA
    int cases = 0;
    each_fps_case([&](const FpsCase& c, bool every) {
      if (quick && (++cases % 3 || c.args.points.rows * c.args.samples > 600000)) return;
      check_on_device(c, target, every && !quick);
    });
#endif
  }
  std::printf(failures ? "%d FAILED\n" : "all equal\n", failures);
  return failures != 0;
}

namespace {

void bench() {
  Target target;
  const bool gpu = find_device(target);
  std::mt19937 random(3);
  struct Row {
    int64_t clouds, points, samples;
  };
  for (const Row& row :
       {Row{32, 1024, 512}, Row{32, 4096, 1024}, Row{1, 8192, 2048}, Row{1, 16384, 4096},
        Row{16, 16384, 4096}, Row{1, 50000, 4096}, Row{1, 65536, 16384}, Row{1, 111000, 16384},
        Row{32, 65536, 4096}, Row{1, 200000, 16384}, Row{1, 1000000, 16384}}) {
    const FpsCase c =
        batched(Cloud::kCube, row.clouds, row.points, row.samples, 3, DType::kFloat, random);
    double microseconds = 0;
    if (gpu) {
      DeviceBuffers device;
      FpsResult result;
      const FpsArgs args = bind(c, &device, result);
      microseconds = replay_microseconds(args, device, target, 5);
    } else {
      FpsResult result;
      const FpsArgs args = bind(c, nullptr, result);
      microseconds = host_microseconds([&] { run_cpu(args, nullptr, serial_for); });
    }
    std::printf("fps %lld x %lld -> %lld: %.1f us, %.3f us/sample\n",
                static_cast<long long>(row.clouds), static_cast<long long>(row.points),
                static_cast<long long>(row.samples), microseconds,
                microseconds / static_cast<double>(row.samples));
  }
}

}  // namespace
