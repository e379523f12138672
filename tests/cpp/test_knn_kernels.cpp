// SPDX-License-Identifier: Apache-2.0
//
// Nearest-neighbor kernels without torch. Host results against a few plain lines that follow the
// contract; with a GPU, every kernel against the host, bit for bit. `--bench` times graph replays.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/kernels/core/plan_override.h"
#include "csrc/kernels/neighbors/knn/knn.h"
#include "tests/cpp/device_buffers.h"
#include "tests/cpp/store.h"

using namespace torchvox;

namespace {

int failures = 0;

enum class Cloud { kCube, kLattice, kEqual, kLine, kHuge, kNonFinite };
constexpr Cloud kClouds[] = {Cloud::kCube, Cloud::kLattice, Cloud::kEqual,
                             Cloud::kLine, Cloud::kHuge,    Cloud::kNonFinite};

std::vector<double> make_cloud(Cloud kind, int64_t points, int64_t dims, std::mt19937& random) {
  std::uniform_real_distribution<double> unit(-1.0, 1.0);
  std::vector<double> out(points * dims);
  for (int64_t i = 0; i < points * dims; ++i) {
    double x = static_cast<float>(unit(random));
    switch (kind) {
      case Cloud::kLattice: x = static_cast<int>(random() % 7); break;
      case Cloud::kEqual: x = 0.25; break;
      case Cloud::kLine: x = i % dims == 0 ? x : 0.0; break;
      case Cloud::kHuge: x = static_cast<float>(x * 3e38); break;
      case Cloud::kNonFinite: x = random() % 8 == 0 ? (random() % 2 ? NAN : INFINITY) : x; break;
      case Cloud::kCube: break;
    }
    out[i] = x;
  }
  return out;
}

// A call with the memory that its pointers refer to.
struct KnnCase {
  std::string name;
  KnnArgs args;
  std::vector<uint8_t> points, query;
  std::vector<int64_t> lengths, query_lengths, offsets, query_offsets;
  bool values_count = true;  // false: only memory safety is tested

  int64_t slots() const { return args.queries() * args.k; }
};

struct KnnResult {
  std::vector<uint8_t> idx, dist2;
  bool operator==(const KnnResult& other) const { return idx == other.idx && dist2 == other.dist2; }
};

KnnArgs bind(const KnnCase& c, DeviceBuffers* device, KnnResult& result) {
  KnnArgs args = c.args;
  const auto place = [&](const auto& values) -> const void* {
    if (values.empty()) return nullptr;
    return device ? device->copy(values) : values.data();
  };
  args.points.data = place(c.points);
  args.query.data = place(c.query);
  args.points.lengths = {place(c.lengths), true};
  args.query.lengths = {place(c.query_lengths), true};
  args.points.offsets = {place(c.offsets), true};
  args.query.offsets = {place(c.query_offsets), true};
  result.idx.assign(c.slots() * 4, 0xab);
  result.dist2.assign(c.slots() * (args.points.dtype == DType::kDouble ? 8 : 4), 0xab);
  args.idx = static_cast<int32_t*>(device ? device->copy(result.idx) : result.idx.data());
  args.dist2 = device ? device->copy(result.dist2) : result.dist2.data();
  return args;
}

KnnResult on_host(const KnnCase& c, const ParallelFor& parallel_for = serial_for) {
  KnnResult result;
  const KnnArgs args = bind(c, nullptr, result);
  run_cpu(args, nullptr, parallel_for);
  return result;
}

void last_first(int64_t count, const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t i = count; i > 0; --i) body(i - 1, i);
}

// Clouds that overlap, from offsets in disorder, must not write over each other's tiles either.
void check_order_of_tasks(const KnnCase& c) {
  if (!c.args.points.packed || c.args.points.rows > 5000 || on_host(c) == on_host(c, last_first))
    return;
  if (++failures <= 20) std::printf("FAIL %s: the order of tasks shows\n", c.name.c_str());
}

// The contract in its plainest form, for batched clouds of three axes in fp32 and norm 2.
void check_against_definition(const KnnCase& c) {
  const KnnArgs& args = c.args;
  if (args.points.packed || args.points.dtype != DType::kFloat || args.points.columns != 3 ||
      args.manhattan)
    return;
  const KnnResult got = on_host(c);
  const auto* idx = reinterpret_cast<const int32_t*>(got.idx.data());
  const auto* dist2s = reinterpret_cast<const float*>(got.dist2.data());
  const auto* points = reinterpret_cast<const float*>(c.points.data());
  const auto* query = reinterpret_cast<const float*>(c.query.data());
  const auto finite = [](const float* p) {
    return is_finite(p[0]) && is_finite(p[1]) && is_finite(p[2]);
  };
  for (int64_t row = 0; row < args.queries(); ++row) {
    const int64_t b = row / args.query.rows, in_cloud = row % args.query.rows;
    std::vector<std::pair<float, int32_t>> all;
    const float* const q = query + 3 * row;
    const bool exists = c.query_lengths.empty() || in_cloud < c.query_lengths[b];
    const int64_t length = c.lengths.empty() ? args.points.rows : c.lengths[b];
    for (int64_t i = 0; exists && finite(q) && i < std::min(length, args.points.rows); ++i) {
      const float* const p = points + 3 * (b * args.points.rows + i);
      if (!finite(p)) continue;
      const float dx = p[0] - q[0], dy = p[1] - q[1], dz = p[2] - q[2];
      const float d = args.order == DistOrder::kPn2 ? fma_rn(dz, dz, fma_rn(dx, dx, dy * dy))
                                                    : fma_rn(dz, dz, fma_rn(dy, dy, dx * dx));
      all.push_back({d, static_cast<int32_t>(i)});
    }
    std::sort(all.begin(), all.end());
    all.resize(args.k, {INFINITY, -1});
    for (int64_t j = 0; j < args.k; ++j) {
      const int64_t at = row * args.k + j;
      if (idx[at] == all[j].second && dist2s[at] == all[j].first) continue;
      if (++failures <= 20) {
        std::printf("FAIL %s: slot %lld of row %lld is %d at %g, not %d at %g\n", c.name.c_str(),
                    static_cast<long long>(j), static_cast<long long>(row), idx[at], dist2s[at],
                    all[j].second, all[j].first);
      }
      return;
    }
  }
}

KnnCase make_case(Cloud kind, DType dtype, int64_t clouds, int64_t points, int64_t rows, int64_t k,
                  int64_t dims, std::mt19937& random) {
  KnnCase c;
  c.name = "cloud " + std::to_string(static_cast<int>(kind)) + ", type " +
      std::to_string(static_cast<int>(dtype)) + ", " + std::to_string(clouds) + " x " +
      std::to_string(points) + ", " + std::to_string(rows) + " queries, k " + std::to_string(k) +
      ", D " + std::to_string(dims);
  c.args.points = padded(clouds, points, dims, dtype);
  c.args.query = padded(clouds, rows, dims, dtype);
  c.args.k = k;
  if (dims != 3) c.args.order = DistOrder::kLoop;
  c.points = store(make_cloud(kind, clouds * points, dims, random), dtype);
  c.query = store(
      make_cloud(kind == Cloud::kNonFinite ? Cloud::kCube : kind, clouds * rows, dims, random),
      dtype);
  return c;
}

// The same memory as clouds of different sizes, one of them empty, with rows of nobody around.
KnnCase ragged(KnnCase c) {
  c.name += ", ragged";
  const int64_t points = c.args.points.total_rows(), rows = c.args.queries();
  c.args.points.packed = c.args.query.packed = true;
  c.args.points.clouds = c.args.query.clouds = 4;
  c.args.points.rows = points;
  c.args.query.rows = rows;
  c.offsets = {points / 50, points / 3, points / 3, points - points / 9, points};
  c.query_offsets = {rows / 9, rows / 2, rows / 2 + rows / 8, rows - rows / 9, rows - rows / 20};
  return c;
}

template <class Body>
void each_case(Body body) {
  std::mt19937 random(1);
  const auto with_variants = [&](const KnnCase& c) {
    body(c);
    KnnCase other = ragged(c);
    body(other);
    other.args.local_index = false;
    body(other);
    other.name += ", offsets in disorder";
    std::swap(other.offsets[0], other.offsets[3]);
    std::swap(other.query_offsets[1], other.query_offsets[3]);
    other.values_count = false;
    body(other);
    other.offsets = ragged(c).offsets;
    other.offsets[2] = other.offsets[0];
    other.name += ", clouds that overlap";
    body(other);
    other = ragged(c);
    other.name += ", no cloud";
    other.args.points.clouds = other.args.query.clouds = 0;
    body(other);
    other = c;
    other.name += ", lengths";
    for (int64_t b = 0; b < c.args.points.clouds; ++b) {
      other.lengths.push_back(b == 0 ? c.args.points.rows / 3 : (b == 1 ? 1 << 30 : 0));
      other.query_lengths.push_back(b == 1 ? c.args.query.rows / 2 : 1 << 30);
    }
    body(other);
  };
  for (const Cloud kind : kClouds) {
    for (const int64_t k : {1, 3, 16, 32, 33, 64, 100, 128, 129, 2500}) {
      with_variants(make_case(kind, DType::kFloat, 2, 2300, 20, k, 3, random));
    }
    for (const int64_t points : {1, 31, 32, 33, 1023, 1024, 1025, 4097, 40000}) {
      with_variants(make_case(kind, DType::kFloat, 3, points, 9, 16, 3, random));
    }
    for (const DType dtype : {DType::kHalf, DType::kBFloat16, DType::kFloat, DType::kDouble}) {
      for (const int64_t dims : {1, 2, 3, 5}) {
        KnnCase c = make_case(kind, dtype, 2, 700, 10, 20, dims, random);
        with_variants(c);
        c.args.order = DistOrder::kLoop;
        body(c);
        c.args.manhattan = true;
        c.name += ", norm 1";
        with_variants(c);
      }
    }
  }
}

#ifdef TORCHVOX_CUDA
void report(const KnnCase& c, const std::string& what, const KnnResult& got,
            const KnnResult& want) {
  if (++failures > 20) return;
  const auto* a = reinterpret_cast<const int32_t*>(got.idx.data());
  const auto* b = reinterpret_cast<const int32_t*>(want.idx.data());
  int64_t at = 0;
  while (at < c.slots() && a[at] == b[at]) ++at;
  if (at < c.slots()) {
    std::printf("FAIL %s, %s: idx[%lld] is %d, not %d\n", c.name.c_str(), what.c_str(),
                static_cast<long long>(at), a[at], b[at]);
  } else {
    std::printf("FAIL %s, %s: dist2 differs\n", c.name.c_str(), what.c_str());
  }
}

constexpr int64_t kSortedOrder = 3;  // tiles of the order that larger clouds get

void check_on_device(const KnnCase& c, const Target& target) {
  const KnnResult want = on_host(c);
  for (const int64_t kernel : {kAutomatic, int64_t{0}, int64_t{1}, int64_t{2}, kSortedOrder}) {
    set_plan_override("knn_kernel", kernel == kSortedOrder ? 1 : kernel);
    set_plan_override("knn_order", kernel == kSortedOrder ? 1 : kAutomatic);
    DeviceBuffers device;
    KnnResult got;
    const KnnArgs args = bind(c, &device, got);
    run_where(args, &device, &target, failures);
    device.read(args.idx, got.idx);
    device.read(args.dist2, got.dist2);
    if (c.values_count && !(got == want)) {
      report(c, "kernel " + std::to_string(kernel), got, want);
    }
  }
  set_plan_override("knn_kernel", kAutomatic);
  set_plan_override("knn_order", kAutomatic);
}
#endif

}  // namespace

int main(int argc, char** argv) {
  // racecheck watches every shared access: --quick leaves out most cases.
  [[maybe_unused]] const bool quick = argc > 1 && std::string(argv[1]) == "--quick";
  for (const int64_t kernel : {0, 1}) {
    set_plan_override("knn_kernel", kernel);
    each_case([](const KnnCase& c) {
      check_against_definition(c);
      check_order_of_tasks(c);
    });
  }
  set_plan_override("knn_kernel", kAutomatic);
  Target target;
  if (const bool gpu = find_device(target); !gpu) {
    std::printf("no GPU: host only\n");
  } else {
#ifdef TORCHVOX_CUDA
    int cases = 0;
    each_case([&](const KnnCase& c) {
      if (quick && (++cases % 41 || c.args.queries() * c.args.points.rows > 200000)) return;
      check_on_device(c, target);
    });
#endif
  }
  std::printf(failures ? "%d FAILED\n" : "all equal\n", failures);
  return failures != 0;
}
