// SPDX-License-Identifier: Apache-2.0
//
// Filter kernels without torch: keys and cells there and back, groups against a map, sums against
// words added one by one, means against those of sums; every kernel on every side against one
// thread.
#include <algorithm>
#include <map>

#include "csrc/kernels/filter/exact_sum.h"
#include "csrc/kernels/filter/voxel_group.h"
#include "csrc/kernels/filter/voxel_key.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

TEST_CASE("bits are spread and gathered") {
  Random random(1);
  for (int k = 0; k < 1000; ++k) {
    const uint64_t x = random.bits() & 0x1fffff;
    uint64_t want = 0;
    for (int bit = 0; bit < 21; ++bit) want |= (x >> bit & 1) << (3 * bit);
    CHECK(spread_bits(x) == want);
    CHECK(gather_bits(want | random.bits() << 63) == x);
  }
}

TEST_CASE("quotients round down where their product with the divisor leaves 64 bits") {
  const int64_t divisor = int64_t{1} << 32;
  int64_t rest = 0;
  CHECK(floor_divide(INT64_MAX, divisor, 1.0 / static_cast<double>(divisor), &rest) == INT32_MAX);
  CHECK(rest == divisor - 1);
}

template <class T>
void check_keys(int64_t points, int64_t columns, int bits, KeyLayout layout, int64_t clouds,
                Random& random) {
  std::vector<T> values;
  for (int64_t i = 0; i < points * columns; ++i) {
    const float x = random.below(50) == 0 ? kNan : random.uniform(-20, 20);
    if constexpr (std::is_same_v<T, int32_t>) {
      values.push_back(static_cast<int32_t>(is_nan(x) ? 0 : 10 * x));
    } else {
      values.push_back(narrow<T>(x));
    }
  }
  std::vector<int64_t> offsets;
  for (int64_t b = 0; b <= clouds; ++b)
    offsets.push_back(b * points / std::max<int64_t>(clouds, 1));
  const auto body = [&](Side& side) {
    VoxelKeysArgs args;
    args.points.data = side.put(values);
    if constexpr (!std::is_same_v<T, int32_t>) args.points.dtype = dtype_of<T>();
    args.integers = std::is_same_v<T, int32_t>;
    args.points.packed = true;
    args.points.rows = points;
    args.points.columns = args.points.row_stride = columns;
    if (clouds != 1) {
      args.points.clouds = clouds;
      args.points.offsets = side.put(offsets, true);
    }
    for (int axis = 0; axis < 3; ++axis) {
      args.size[axis] = 0.5;
      args.frame.lower[axis] = -(int64_t{1} << (bits - 1));
    }
    args.frame.bits = bits;
    args.frame.layout = layout;
    args.keys = side.room<int64_t>("keys", points);
    args.counts = side.room<int32_t>("counts", (args.points.clouds + 1) * kKeyCounts);
    side.run(args);
    VoxelCellsArgs cells;
    cells.keys = args.keys;
    cells.rows = points;
    cells.frame = args.frame;
    cells.cells = side.room<int32_t>("cells", 4 * points);
    side.run(cells);
  };
  const Outputs outputs = on_every_side(body);
  const auto keys = outputs.get<int64_t>("keys");
  const auto cells = outputs.get<int32_t>("cells");
  const auto counts = outputs.get<int32_t>("counts");
  int64_t keyed = 0, wrong = 0;
  for (int64_t i = 0; i < points; ++i) {
    keyed += keys[i] >= 0;
    for (int axis = 0; axis < 3 && keys[i] >= 0; ++axis) {
      double p = 0;
      if constexpr (std::is_same_v<T, int32_t>) {
        p = values[i * columns + axis];
      } else {
        p = number(values[i * columns + axis]);
      }
      wrong += cells[4 * i + 3 - axis] != std::floor(p * 2);
    }
    wrong += keys[i] < 0 && cells[4 * i] != -1;
  }
  CHECK(wrong == 0);
  CHECK(counts[0] == keyed);
  if (clouds > 0) CHECK(counts[0] + counts[1] + counts[2] == points);
}

TEST_CASE("keys name cells") {
  Random random(2);
  for (const int64_t points : {0, 1, 1000, 40000}) {
    for (const int bits : {4, 7, 18}) {
      for (const KeyLayout layout : {KeyLayout::kMorton, KeyLayout::kZyx}) {
        CAPTURE(points);
        check_keys<float>(points, 4, bits, layout, 1, random);
        check_keys<double>(points, 3, bits, layout, 7, random);
        if (quick) continue;
        check_keys<Half>(points, 5, bits, layout, 300, random);
        check_keys<BFloat16>(points, 3, bits, layout, 0, random);
        check_keys<int32_t>(points, 3, bits, layout, 1, random);
      }
    }
  }
}

enum class Keys { kRandom, kOne, kDistinct, kNone, kWide };

std::vector<int64_t> make_keys(Keys kind, int64_t points, Random& random) {
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < points; ++i) {
    switch (kind) {
      case Keys::kRandom: keys.push_back(random.below(points / 4 + 1) - 3); break;
      case Keys::kOne: keys.push_back(5); break;
      case Keys::kDistinct: keys.push_back(points - i); break;
      case Keys::kNone: keys.push_back(i % 2 ? -1 : int64_t{1} << 40); break;
      case Keys::kWide: keys.push_back(INT64_MAX - random.below(1000) * (int64_t{1} << 50)); break;
    }
  }
  return keys;
}

void group(Side& side, const std::vector<int64_t>& keys, int key_bits, bool by_key,
           GroupBackend backend) {
  VoxelGroupArgs args;
  args.keys = side.put(keys);
  args.points = static_cast<int64_t>(keys.size());
  args.key_bits = key_bits;
  args.by_key = by_key;
  args.backend = backend;
  args.threads = 3;
  args.row_keys = side.room<int64_t>("row_keys", args.points);
  args.offsets = side.room<int32_t>("offsets", args.points + 1);
  args.perm = side.room<int32_t>("perm", args.points);
  args.point_voxel = side.room<int32_t>("point_voxel", args.points);
  args.counts = side.room<int32_t>("counts", 2);
  side.run(args);
}

void check_groups(const std::vector<int64_t>& keys, int key_bits, bool by_key) {
  std::map<int64_t, std::vector<int32_t>> lists;
  std::vector<int64_t> order;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (static_cast<uint64_t>(keys[i]) >> key_bits) continue;
    std::vector<int32_t>& list = lists[keys[i]];
    if (list.empty()) order.push_back(keys[i]);
    list.push_back(static_cast<int32_t>(i));
  }
  if (by_key) std::sort(order.begin(), order.end());
  std::vector<int64_t> row_keys(keys.size(), -1);
  std::vector<int32_t> offsets(keys.size() + 1), perm, point_voxel(keys.size(), -1);
  for (size_t row = 0; row < order.size(); ++row) {
    row_keys[row] = order[row];
    offsets[row] = static_cast<int32_t>(perm.size());
    for (const int32_t point : lists[order[row]]) {
      perm.push_back(point);
      point_voxel[point] = static_cast<int32_t>(row);
    }
  }
  std::fill(offsets.begin() + order.size(), offsets.end(), static_cast<int32_t>(perm.size()));
  const std::vector<int32_t> counts = {static_cast<int32_t>(order.size()),
                                       static_cast<int32_t>(perm.size())};
  perm.resize(keys.size(), -1);
  for (const GroupBackend backend : {GroupBackend::kSort, GroupBackend::kHash}) {
    const Outputs got =
        on_every_side([&](Side& side) { group(side, keys, key_bits, by_key, backend); });
    CHECK_SAME(got.get<int64_t>("row_keys"), row_keys);
    CHECK_SAME(got.get<int32_t>("offsets"), offsets);
    CHECK_SAME(got.get<int32_t>("perm"), perm);
    CHECK_SAME(got.get<int32_t>("point_voxel"), point_voxel);
    CHECK_SAME(got.get<int32_t>("counts"), counts);
  }
}

TEST_CASE("groups of keys") {
  Random random(3);
  for (const int64_t points : {0, 1, 33, 5000, 70000}) {
    if (quick && points > 5000) continue;
    for (const Keys kind : {Keys::kRandom, Keys::kOne, Keys::kDistinct, Keys::kNone, Keys::kWide}) {
      for (const bool by_key : {false, true}) {
        CAPTURE(points);
        CAPTURE(kind);
        const int key_bits = kind == Keys::kWide ? 63 : 33;
        check_groups(make_keys(kind, points, random), key_bits, by_key);
      }
    }
  }
}

TEST_CASE("groups of many points") {
  Random random(4);
  check_groups(make_keys(Keys::kRandom, quick ? 3000 : 300000, random), 40, false);
}

// Sums of rows of many sizes, one of which takes a third of all points.
template <class T>
void check_sums(int64_t points, int64_t columns, Random& random) {
  std::vector<T> values;
  for (int64_t i = 0; i < points * columns; ++i) {
    const double x = std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(60)) - 28);
    if constexpr (std::is_integral_v<T>) {
      values.push_back(static_cast<T>(x * 1000));
    } else {
      values.push_back(random.below(90) == 0 ? narrow<T>(kNan) : narrow<T>(x));
    }
  }
  std::vector<int32_t> offsets = {0}, perm;
  while (offsets.back() < points) {
    const int64_t size = random.below(40) == 0 ? points / 3 : 1 + random.below(9);
    offsets.push_back(static_cast<int32_t>(std::min(points, offsets.back() + size)));
  }
  offsets.resize(offsets.size() + 5, static_cast<int32_t>(points));
  for (int64_t i = 0; i < points; ++i) perm.push_back(static_cast<int32_t>((i * 7919) % points));
  const int64_t rows = static_cast<int64_t>(offsets.size()) - 1;
  const ValueType type = std::is_same_v<T, Half> ? ValueType::kHalf
      : std::is_same_v<T, float>                 ? ValueType::kFloat
      : std::is_same_v<T, double>                ? ValueType::kDouble
      : std::is_same_v<T, int32_t>               ? ValueType::kInt
                                                 : ValueType::kLong;
  const Outputs got = on_every_side([&](Side& side) {
    VoxelSumArgs args;
    args.values = side.put(values);
    args.type = type;
    args.points = points, args.columns = columns, args.rows = rows;
    args.offsets = side.put(offsets);
    args.perm = side.put(perm);
    VoxelSumArgs means = args;
    args.sums = side.room<int64_t>("sums", rows * columns * kSumWords<T>);
    side.run(args);
    means.means = side.room<T>("means", rows * columns);
    side.run(means);
    VoxelMeanOfSumsArgs of_sums;
    of_sums.sums = args.sums;
    std::vector<int64_t> sizes;
    for (int64_t r = 0; r < rows; ++r) sizes.push_back(offsets[r + 1] - offsets[r]);
    of_sums.num_points = side.put(sizes, true);
    of_sums.type = type;
    of_sums.rows = rows, of_sums.columns = columns;
    of_sums.means = side.room<T>("means of sums", rows * columns);
    side.run(of_sums);
  });
  CHECK_SAME(got.get<T>("means of sums"), got.get<T>("means"));
  const auto sums = got.get<int64_t>("sums");
  int64_t wrong = 0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      ExactSum<T> sum;
      for (int32_t k = offsets[row]; k < offsets[row + 1]; ++k) {
        ExactSum<T> one;
        one.add(values[perm[k] * columns + c]);
        for (int w = 0; w < kSumWords<T>; ++w) sum.words[w] += one.words[w];
      }
      for (int k = 0; k < kSumWords<T>; ++k) {
        wrong += sums[(row * columns + c) * kSumWords<T> + k] != static_cast<int64_t>(sum.words[k]);
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("sums and means") {
  Random random(5);
  for (const int64_t points : {1, 31, 32, 33, 4000, 30000}) {
    if (quick && points > 4000) continue;
    CAPTURE(points);
    check_sums<float>(points, 7, random);
    check_sums<double>(points, 3, random);
    check_sums<int64_t>(points, 1, random);
    check_sums<int32_t>(points, 9, random);
    check_sums<Half>(points, 4, random);
  }
}

TEST_CASE("offsets in disorder") {
  Random random(6);
  std::vector<int32_t> offsets, perm;
  for (int k = 0; k < 200; ++k) offsets.push_back(static_cast<int32_t>(random.below(700)) - 100);
  for (int k = 0; k < 500; ++k) perm.push_back(static_cast<int32_t>(random.below(900)) - 200);
  const std::vector<float> values(1500, 1.f);
  const auto body = [&](Side& side) {
    VoxelSumArgs args;
    args.values = side.put(values);
    args.points = 500, args.columns = 3, args.rows = 199;
    args.offsets = side.put(offsets);
    args.perm = side.put(perm);
    args.means = side.room<float>("means", 3 * args.rows);
    side.run(args);
  };
  check_sides(body, run_on(Where::kThread, body), /*values_count=*/false);
}

}  // namespace
