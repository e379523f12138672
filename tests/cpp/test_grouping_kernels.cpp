// SPDX-License-Identifier: Apache-2.0
//
// Grouping kernels without torch. Inverse indices against a few plain lines that follow the
// contract; every kernel on every side against one thread.
#include "csrc/kernels/grouping/gather_points.h"
#include "csrc/kernels/grouping/interpolate.h"
#include "csrc/kernels/grouping/inverse_index/inverse_index.h"
#include "csrc/kernels/grouping/neighbor_distance.h"
#include "csrc/kernels/grouping/segment_reduce.h"
#include "csrc/kernels/grouping/segment_sum.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

// What the slots of a case read: every row alike, mostly the first rows, one row, or nothing.
enum class Spread { kEven, kHot, kOne, kNone };

struct Case {
  int64_t clouds, rows, queries, k, channels;
  Spread spread;
  int64_t slots() const { return queries * k; }
};

std::vector<int32_t> indices(const Case& c, Random& random) {
  std::vector<int32_t> idx(c.clouds * c.slots());
  for (int32_t& i : idx) {
    const int64_t even = random.below(c.rows + 4) - 2;
    switch (c.spread) {
      case Spread::kEven: i = static_cast<int32_t>(even); break;
      case Spread::kHot:
        i = static_cast<int32_t>(random.below(8) ? random.below(c.rows / 50 + 1) : even);
        break;
      case Spread::kOne: i = static_cast<int32_t>(c.rows / 2); break;
      case Spread::kNone: i = -1; break;
    }
  }
  return idx;
}

InverseIndex inverse_on(Side& side, const Case& c, const int32_t* idx) {
  InverseIndexArgs args;
  args.idx = {idx, false};
  args.inverse.clouds = c.clouds, args.inverse.rows = c.rows, args.inverse.slots = c.slots();
  const int64_t bytes = args.inverse.place(nullptr, side.is_device());
  args.inverse.place(side.scratch(bytes), side.is_device());
  side.run(args);
  return args.inverse;
}

// Whether each slot is in the list of the row that it names, in ascending order.
bool is_inverse(const Case& c, const std::vector<int32_t>& idx, Where where) {
  Side side(where);
  const InverseIndex inverse = inverse_on(side, c, side.put(idx));
  const auto memory = side.take_outputs().get<int32_t>("scratch");
  const int32_t* const offsets = memory.data();
  const int32_t* const order = offsets + (inverse.order - inverse.offsets);
  bool good = true;
  for (int64_t b = 0; b < c.clouds && good; ++b) {
    std::vector<int32_t> end(offsets + b * (c.rows + 1), offsets + (b + 1) * (c.rows + 1));
    int64_t named = 0;
    for (int64_t s = 0; s < c.slots(); ++s) {
      const int32_t row = idx[b * c.slots() + s];
      if (row < 0 || row >= c.rows) continue;
      ++named;
      good = good && end[row] < c.slots() && order[b * c.slots() + end[row]] == s;
      ++end[row];
    }
    for (int64_t row = 0; row < c.rows; ++row) {
      good = good && end[row] == offsets[b * (c.rows + 1) + row + 1];
    }
    good = good && offsets[b * (c.rows + 1)] == 0 && end.back() == named;
  }
  return good;
}

struct Inputs {
  DType dtype;
  bool channels_first;
  std::vector<int32_t> idx;
  Bytes features, grad, weight, sum_weight, points, query;

  Inputs(const Case& c, DType dtype, bool channels_first, const std::vector<int32_t>& idx,
         Random& random)
      : dtype(dtype), channels_first(channels_first), idx(idx) {
    const auto values = [&](DType type, int64_t count) {
      return store(random.uniforms(count), type);
    };
    features = values(dtype, c.clouds * c.rows * c.channels);
    grad = values(dtype, c.clouds * c.slots() * c.channels);
    weight = values(DType::kFloat, c.clouds * c.slots());
    sum_weight = values(wide(), c.clouds * c.slots());
    points = values(dtype, c.clouds * c.rows * 3);
    query = values(dtype, c.clouds * c.queries * 3);
  }
  DType wide() const { return dtype == DType::kDouble ? DType::kDouble : DType::kFloat; }
};

void gather(Side& side, const Case& c, const Inputs& in) {
  GatherPointsArgs args;
  args.features = side.put(in.features);
  args.idx = {side.put(in.idx), false};
  args.out = side.room("out", in.dtype, c.clouds * c.slots() * c.channels);
  args.element_bytes = element_bytes(in.dtype);
  args.batches = c.clouds, args.points = c.rows, args.samples = c.slots();
  args.channels = c.channels, args.channels_first = in.channels_first;
  side.run(args);
}

void sum(Side& side, const Case& c, const Inputs& in) {
  SegmentSumArgs args;
  args.grad = side.put(in.grad);
  args.dtype = in.dtype;
  args.inverse = inverse_on(side, c, side.put(in.idx));
  args.out = side.room("out", in.dtype, c.clouds * c.rows * c.channels);
  args.channels = c.channels, args.channels_first = in.channels_first;
  side.run(args);
}

// The case's first three slots of each query as an interpolation, its sum and its weights.
void interpolate(Side& side, Case c, const Inputs& in) {
  c.k = kNearest;
  const int64_t values = c.clouds * c.queries * c.channels;
  InterpolateArgs args;
  args.features = side.put(in.features);
  args.dtype = in.dtype;
  args.idx = {side.put(in.idx), false};
  args.weight = side.put(in.weight);
  args.out = side.room("out", in.dtype, values);
  args.clouds = c.clouds, args.rows = c.rows, args.queries = c.queries;
  args.channels = c.channels, args.channels_first = in.channels_first;
  side.run(args);

  SegmentSumArgs sum;
  const auto bytes = static_cast<size_t>(values * element_bytes(in.dtype));
  sum.grad = side.put(Bytes(in.grad.begin(), in.grad.begin() + bytes));
  sum.dtype = in.dtype;
  sum.weight = side.put(in.sum_weight);
  sum.inverse = inverse_on(side, c, static_cast<const int32_t*>(args.idx.data));
  sum.out = side.room("sum", in.dtype, c.clouds * c.rows * c.channels);
  sum.channels = c.channels, sum.channels_first = in.channels_first;
  side.run(sum);

  InterpolateWeightGradArgs weights;
  weights.grad = sum.grad;
  weights.features = args.features;
  weights.dtype = in.dtype;
  weights.idx = args.idx;
  weights.grad_weight = side.room<float>("grad_weight", c.clouds * c.slots());
  weights.clouds = c.clouds, weights.rows = c.rows, weights.queries = c.queries;
  weights.channels = c.channels, weights.channels_first = in.channels_first;
  side.run(weights);
}

void distance(Side& side, const Case& c, const Inputs& in, int norm) {
  NeighborDistanceArgs args;
  args.dtype = in.dtype;
  args.norm = norm;
  args.grad = side.put(in.sum_weight);
  args.points = side.put(in.points);
  args.query = side.put(in.query);
  args.idx = {side.put(in.idx), false};
  args.inverse = inverse_on(side, c, static_cast<const int32_t*>(args.idx.data));
  args.grad_points = side.room("grad_points", in.dtype, c.clouds * c.rows * 3);
  args.grad_query = side.room("grad_query", in.dtype, c.clouds * c.queries * 3);
  args.queries = c.queries, args.k = c.k;
  side.run(args);
}

// Other sides with the baseline's instructions, one thread with the widest.
template <class Body>
void check_op(const char* name, const Body& body) {
  INFO(name);
  const Outputs want = run_on(Where::kThread, body);
  const Plan plan("interpolate_cpu", 0);
  check_sides(body, want);
}

void check(const Case& c) {
  INFO(c.clouds, " x ", c.rows, ", ", c.queries, " x ", c.k, " slots, ", c.channels, " channels");
  CAPTURE(c.spread);
  Random random(static_cast<uint64_t>(c.rows + 31 * c.slots() + 7 * c.channels));
  const std::vector<int32_t> idx = indices(c, random);
  for (const Where where : {Where::kThreads, Where::kDevice}) {
    if (where == Where::kDevice && !has_device()) continue;
    CAPTURE(where);
    CHECK(is_inverse(c, idx, where));
    const Plan sorted("inverse_index", 1);
    CHECK(is_inverse(c, idx, where));
  }
  for (const DType dtype : {DType::kHalf, DType::kBFloat16, DType::kFloat, DType::kDouble}) {
    for (const bool channels_first : {false, true}) {
      CAPTURE(dtype);
      CAPTURE(channels_first);
      const Inputs in(c, dtype, channels_first, idx, random);
      check_op("gather", [&](Side& side) { gather(side, c, in); });
      check_op("sum", [&](Side& side) { sum(side, c, in); });
      if (c.k >= kNearest) check_op("interpolate", [&](Side& side) { interpolate(side, c, in); });
      if (channels_first) continue;
      check_op("distance, norm 1", [&](Side& side) { distance(side, c, in, 1); });
      check_op("distance, norm 2", [&](Side& side) { distance(side, c, in, 2); });
    }
  }
}

TEST_CASE("widths") {
  for (const int64_t channels : {0, 1, 3, 4, 8, 33}) {
    check({2, 50, 30, 4, channels, Spread::kEven});
  }
}

TEST_CASE("nothing to read") {
  check({3, 0, 7, 3, 2, Spread::kEven});
  check({3, 7, 0, 3, 2, Spread::kEven});
  check({1, 100, 90, 3, 5, Spread::kNone});
}

TEST_CASE("spreads") {
  for (const Spread spread : {Spread::kEven, Spread::kHot, Spread::kOne}) {
    check({2, 40, 750, 4, 8, spread});
    check({1, 600, 1707, 3, 5, spread});
    check({3, 3000, 2000, 5, 1, spread});
  }
}

TEST_CASE("sizes") {
  check({40, 16, 5, 3, 4, Spread::kEven});
  check({1, 65000, 9000, 4, 1, Spread::kEven});  // rows in several tiles
  check({2, 5000, 40000, 3, 1, Spread::kHot});  // several parts and runs
  check({1, 1 << 20, 700, 3, 1, Spread::kEven});  // too many rows to count
}

// Segments of rows, or of rows by index; then entries take their segments' values back.
void reduce(Side& side, const std::vector<int64_t>& offsets, const std::vector<int32_t>& index,
            const Bytes& src, DType dtype, int64_t channels, Reduction reduce) {
  SegmentReduceArgs args;
  args.src = side.put(src);
  args.dtype = dtype, args.reduce = reduce, args.channels = channels;
  args.rows = static_cast<int64_t>(src.size()) / (channels * element_bytes(dtype));
  args.entries = index.empty() ? args.rows : static_cast<int64_t>(index.size());
  args.segments = static_cast<int64_t>(offsets.size()) - 1;
  args.offsets = side.put(offsets, true);
  args.index = {side.put(index), false};
  args.out = side.room("out", dtype, args.segments * channels);
  if (is_extreme(reduce)) args.arg = side.room<int32_t>("arg", args.segments * channels);
  side.run(args, true);

  SegmentSpreadArgs spread;
  spread.grad = args.out, spread.dtype = dtype, spread.reduce = reduce;
  spread.channels = channels, spread.segments = args.segments, spread.entries = args.entries;
  spread.offsets = args.offsets, spread.arg = args.arg;
  spread.out = side.room("spread", dtype, args.entries * channels);
  side.run(spread);
}

TEST_CASE("segments") {
  Random random(11);
  std::vector<int64_t> even(5001), hostile(40);
  for (size_t i = 0; i < even.size(); ++i) even[i] = static_cast<int64_t>(i);
  for (int64_t& at : hostile) at = random.below(6000) - 500;
  std::vector<int32_t> index(7000);
  for (int32_t& row : index) row = static_cast<int32_t>(random.below(5004)) - 2;
  const std::vector<std::vector<int64_t>> all = {
      even, {0, 5000}, {3, 40, 40, 1100, 4200, 4201, 4990}, hostile, {0, 40'000'000'000}, {7}};
  for (const int64_t channels : {1, 3, 8, 72}) {
    for (const DType dtype : {DType::kHalf, DType::kBFloat16, DType::kFloat, DType::kDouble}) {
      const Bytes src = store(random.uniforms(5000 * channels), dtype);
      for (const Reduction how :
           {Reduction::kSum, Reduction::kMean, Reduction::kMax, Reduction::kMin}) {
        for (const auto& offsets : all) {
          CAPTURE(channels);
          CAPTURE(dtype);
          CAPTURE(how);
          for (const auto& named : {std::vector<int32_t>(), index}) {
            const auto body = [&](Side& side) {
              reduce(side, offsets, named, src, dtype, channels, how);
            };
            check_sides(body, run_on(Where::kThread, body));
          }
        }
      }
    }
  }
}

}  // namespace
