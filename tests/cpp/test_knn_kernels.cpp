// SPDX-License-Identifier: Apache-2.0
//
// Nearest neighbors without torch: the host against a few plain lines that follow the contract,
// every kernel and side against the host.
#include <algorithm>

#include "csrc/kernels/neighbors/knn/knn.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

// A call with the memory that its pointers refer to.
struct Case {
  std::string name;
  KnnArgs args;
  Clouds points, query;
  bool values_count = true;  // false: only memory safety is tested

  int64_t queries() const { return query.batch.total_rows(); }
  void operator()(Side& side) const {
    KnnArgs bound = args;
    bound.points = points.on(side);
    bound.query = query.on(side);
    const bool wide = points.batch.dtype == DType::kDouble;
    bound.idx = side.room<int32_t>("idx", queries() * args.k);
    bound.dist2 = side.room("dist2", wide ? DType::kDouble : DType::kFloat, queries() * args.k);
    side.run(bound);
  }
};

// The contract in its plainest form, for batched clouds of three axes in fp32 and norm 2.
void check_against_definition(const Case& c, const Outputs& got) {
  const CloudBatch& clouds = c.points.batch;
  const auto points = values_of<float>(c.points.points), query = values_of<float>(c.query.points);
  const auto finite = [](const float* p) {
    return is_finite(p[0]) && is_finite(p[1]) && is_finite(p[2]);
  };
  std::vector<int32_t> idx;
  std::vector<float> dist2;
  for (int64_t row = 0; row < c.queries(); ++row) {
    const int64_t b = row / c.query.batch.rows, in_cloud = row % c.query.batch.rows;
    const float* const q = &query[3 * row];
    const bool exists = c.query.lengths.empty() || in_cloud < c.query.lengths[b];
    const int64_t length = c.points.lengths.empty() ? clouds.rows : c.points.lengths[b];
    std::vector<std::pair<float, int32_t>> all;
    for (int64_t i = 0; exists && finite(q) && i < std::min(length, clouds.rows); ++i) {
      const float* const p = &points[3 * (b * clouds.rows + i)];
      if (!finite(p)) continue;
      const float dx = p[0] - q[0], dy = p[1] - q[1], dz = p[2] - q[2];
      const float d = c.args.order == DistOrder::kPn2 ? fma_rn(dz, dz, fma_rn(dx, dx, dy * dy))
                                                      : fma_rn(dz, dz, fma_rn(dy, dy, dx * dx));
      all.push_back({d, static_cast<int32_t>(i)});
    }
    std::sort(all.begin(), all.end());
    all.resize(c.args.k, {kInfinity, -1});
    for (const auto& [d, i] : all) idx.push_back(i), dist2.push_back(d);
  }
  CHECK_SAME(got.get<int32_t>("idx"), idx);
  CHECK_SAME(got.get<float>("dist2"), dist2);
}

Case make_case(Cloud kind, DType dtype, int64_t clouds, int64_t points, int64_t rows, int64_t k,
               int64_t dims, Random& random) {
  Case c;
  c.name = "cloud " + std::to_string(static_cast<int>(kind)) + ", type " +
      std::to_string(static_cast<int>(dtype)) + ", " + std::to_string(clouds) + " x " +
      std::to_string(points) + ", " + std::to_string(rows) + " queries, k " + std::to_string(k) +
      ", D " + std::to_string(dims);
  c.args.k = k;
  if (dims != 3) c.args.order = DistOrder::kLoop;
  c.points = padded(make_cloud(kind, clouds * points, dims, random), clouds, points, dims, dtype);
  const Cloud of_queries = kind == Cloud::kNonFinite ? Cloud::kCube : kind;
  c.query = padded(make_cloud(of_queries, clouds * rows, dims, random), clouds, rows, dims, dtype);
  return c;
}

// The same memory as clouds of different sizes, one of them empty, with rows of nobody around.
Case ragged(Case c) {
  c.name += ", ragged";
  const int64_t points = c.points.batch.total_rows(), rows = c.queries();
  for (Clouds* clouds : {&c.points, &c.query}) {
    clouds->batch.rows = clouds->batch.total_rows();
    clouds->batch.packed = true;
    clouds->batch.clouds = 4;
  }
  c.points.offsets = {points / 50, points / 3, points / 3, points - points / 9, points};
  c.query.offsets = {rows / 9, rows / 2, rows / 2 + rows / 8, rows - rows / 9, rows - rows / 20};
  return c;
}

template <class Body>
void each_variant(const Case& c, const Body& body) {
  body(c);
  Case other = ragged(c);
  body(other);
  other.args.local_index = false;
  body(other);
  other.name += ", offsets in disorder";
  std::swap(other.points.offsets[0], other.points.offsets[3]);
  std::swap(other.query.offsets[1], other.query.offsets[3]);
  other.values_count = false;
  body(other);
  other.points.offsets = ragged(c).points.offsets;
  other.points.offsets[2] = other.points.offsets[0];
  other.name += ", clouds that overlap";
  body(other);
  other = ragged(c);
  other.name += ", no cloud";
  other.points.batch.clouds = other.query.batch.clouds = 0;
  body(other);
  other = c;
  other.name += ", lengths";
  for (int64_t b = 0; b < c.points.batch.clouds; ++b) {
    other.points.lengths.push_back(b == 0 ? c.points.batch.rows / 3 : (b == 1 ? 1 << 30 : 0));
    other.query.lengths.push_back(b == 1 ? c.query.batch.rows / 2 : 1 << 30);
  }
  body(other);
}

template <class Body>
void each_case(const Body& body) {
  Random random(1);
  for (const Cloud kind : {Cloud::kCube, Cloud::kLattice, Cloud::kEqual, Cloud::kLine, Cloud::kHuge,
                           Cloud::kNonFinite}) {
    for (const int64_t k : {1, 3, 16, 32, 33, 64, 100, 128, 129, 2500}) {
      each_variant(make_case(kind, DType::kFloat, 2, 2300, 20, k, 3, random), body);
    }
    for (const int64_t points : {1, 31, 32, 33, 1023, 1024, 1025, 4097, 40000}) {
      each_variant(make_case(kind, DType::kFloat, 3, points, 9, 16, 3, random), body);
    }
    for (const DType dtype : {DType::kHalf, DType::kBFloat16, DType::kFloat, DType::kDouble}) {
      for (const int64_t dims : {1, 2, 3, 5}) {
        Case c = make_case(kind, dtype, 2, 700, 10, 20, dims, random);
        each_variant(c, body);
        c.args.order = DistOrder::kLoop;
        body(c);
        c.args.manhattan = true;
        c.name += ", norm 1";
        each_variant(c, body);
      }
    }
  }
}

TEST_CASE("neighbors on the host") {
  for (const int kernel : {0, 1}) {
    CAPTURE(kernel);
    const Plan plan("knn_kernel", kernel);
    each_case([](const Case& c) {
      INFO(c.name);
      const CloudBatch& clouds = c.points.batch;
      const Outputs got = run_on(Where::kThread, c);
      if (!clouds.packed && clouds.dtype == DType::kFloat && clouds.columns == 3 &&
          !c.args.manhattan) {
        check_against_definition(c, got);
      }
      // Clouds that overlap must not write over each other's tiles either.
      if (clouds.packed && clouds.rows <= 5000) check_side(Where::kThreads, c, got);
    });
  }
}

TEST_CASE("neighbors on the device") {
  constexpr int64_t kSorted = 3;  // tiles in the order that larger clouds get
  if (!has_device()) return;
  int cases = 0;
  each_case([&](const Case& c) {
    if (quick && (++cases % 41 || c.queries() * c.points.batch.rows > 200000)) return;
    INFO(c.name);
    const Outputs want = run_on(Where::kThread, c);
    for (const int64_t kernel : {kAutomatic, int64_t{0}, int64_t{1}, int64_t{2}, kSorted}) {
      CAPTURE(kernel);
      const Plan kernel_plan("knn_kernel", kernel == kSorted ? 1 : kernel);
      const Plan order_plan("knn_order", kernel == kSorted ? 1 : kAutomatic);
      check_side(Where::kDevice, c, want, c.values_count);
    }
  });
}

}  // namespace
