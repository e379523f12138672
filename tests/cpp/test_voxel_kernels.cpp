// SPDX-License-Identifier: Apache-2.0
//
// voxelize without torch: every number of partitions and every plan and side against one thread
// with one partition. What the outputs must be is tested through the ops.
#include <algorithm>

#include "csrc/kernels/voxel/voxelize/voxelize.h"
#include "tests/cpp/kernel_test.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

enum VoxelCloud {
  kUniform,
  kClustered,
  kOneVoxel,
  kTwoVoxels,
  kHot,
  kDistinct,
  kNotFinite,
  kOutside,
  kClouds
};

struct Case {
  std::string name;
  int64_t rows = 1000;
  int64_t columns = 4;
  int64_t pad = 0;  // extra elements in a row
  VoxelCloud cloud = kUniform;
  DType dtype = DType::kFloat;
  VoxelizeArgs args;
  std::vector<int64_t> offsets;  // empty: one sample
  std::vector<int64_t> valid;
  bool wide_indices = false;
  int table = -1;
  int ranking = -1;
  bool want_slot = false;
  bool want_arg = false;
  bool want_features = true;
  bool is_specified = true;  // false: only memory safety is tested
};

double coordinate(Random& random, VoxelCloud cloud, int64_t row, int64_t column, double lo,
                  double hi) {
  const double u = random.uniform(0, 1);
  if (column >= 3) return u < 0.02 ? (u < 0.01 ? kNan : -0.0) : std::floor(u * 64) / 8 - 4;
  switch (cloud) {
    case kClustered: {
      const double at = lo + (hi - lo) * std::floor(u * 37) / 37;
      return at + random.uniform(0, 1) * random.uniform(0, 1) * 0.3;
    }
    case kOneVoxel: return lo + 0.01 * u;
    case kTwoVoxels: return lo + 0.01 * u + (column == 0 && row % 2 ? 0.95 * (hi - lo) : 0);
    case kHot: return random.below(3) ? lo + (hi - lo) * u : lo;
    case kDistinct: {
      const int64_t cell = column == 0 ? row % 40 : column == 1 ? row / 40 % 40 : row / 1600 % 4;
      return lo + cell * 0.2 + 0.1;
    }
    case kNotFinite: return row % 3 == 0 ? (u < 0.5 ? kNan : kInfinity) : lo + (hi - lo) * u;
    case kOutside: return u < 0.5 ? 1e30 : lo - 1 + (hi - lo + 2) * u;
    default: return lo - 0.05 + (hi - lo + 0.1) * u;
  }
}

VoxelGrid grid_of(float x, float y, float z) {
  VoxelGrid grid;
  const float lo[3] = {-4, -4, -1}, hi[3] = {4, 4, 1}, size[3] = {x, y, z};
  for (int axis = 0; axis < 3; ++axis) {
    grid.lo[axis] = lo[axis];
    grid.hi[axis] = hi[axis];
    grid.size[axis] = size[axis];
    grid.cells[axis] = static_cast<int32_t>(cells_on_axis(lo[axis], hi[axis], size[axis]));
  }
  return grid;
}
VoxelGrid small_grid() { return grid_of(0.2f, 0.2f, 0.5f); }
VoxelGrid cubes(float size) { return grid_of(size, size, size); }
// Mostly one point a voxel; keys far past 32 bits.
constexpr float kFine = 1.f / 64, kTiny = 1.f / (1 << 17);

// The corners that a random draw would miss. `--quick` leaves one for every launch plan.
std::vector<Case> fixed_cases() {
  std::vector<Case> cases;
  const auto add = [&](const char* name, auto change) {
    Case c;
    c.name = name;
    c.args.grid = small_grid();
    c.args.max_points = 5;
    c.args.max_voxels = 300;
    c.args.reduce = VoxelReduce::kMean;
    change(c);
    cases.push_back(c);
  };
  add("no points", [](Case& c) { c.rows = 0; });
  add("no points, no caps", [](Case& c) { c.rows = 0, c.args.max_voxels = -1; });
  add("one point", [](Case& c) { c.rows = 1; });
  add("no samples", [](Case& c) { c.offsets = {0}, c.args.max_voxels = -1; });
  add("no samples, sorted", [](Case& c) { c.offsets = {0}, c.args.order = VoxelOrder::kZyx; });
  add("no voxels wanted", [](Case& c) { c.args.max_voxels = 0, c.want_slot = true; });
  add("no points wanted", [](Case& c) { c.args.max_points = 0, c.want_slot = true; });
  add("no points wanted, copy",
      [](Case& c) { c.args.max_points = 0, c.args.reduce = VoxelReduce::kNone; });
  add("decreasing offsets", [](Case& c) {
    c.offsets = {900, 100, 500, -7, 5000};
    c.is_specified = false;
  });
  for (const VoxelCloud cloud : {kClustered, kUniform, kHot}) {
    for (const VoxelReduce reduce : {VoxelReduce::kMean, VoxelReduce::kNone}) {
      if (quick && (cloud != kClustered || reduce != VoxelReduce::kMean)) continue;
      add("many points", [&](Case& c) {
        c.rows = 600000;
        c.cloud = cloud;
        c.args.reduce = reduce;
        c.args.max_points = reduce == VoxelReduce::kNone ? 4 : 32;
        c.args.max_voxels = -1;
        if (cloud == kUniform) c.args.grid = cubes(kFine);
      });
    }
  }
  for (const int64_t rows : {4096, 4097, 20000, 70000}) {
    for (const VoxelCloud cloud : {kOneVoxel, kTwoVoxels}) {
      if (quick && (rows != 4097 || cloud != kTwoVoxels)) continue;
      for (const VoxelReduce reduce : {VoxelReduce::kMean, VoxelReduce::kMax, VoxelReduce::kNone}) {
        for (const int64_t cap : {int64_t{-1}, int64_t{10}, int64_t{1000}}) {
          if (reduce == VoxelReduce::kNone && cap < 0) continue;
          add("huge voxels", [&](Case& c) {
            c.rows = rows;
            c.cloud = cloud;
            c.args.reduce = reduce;
            c.args.max_points = cap;
            c.args.max_voxels = reduce == VoxelReduce::kNone ? 4 : -1;
            c.want_slot = c.want_arg = cap != 10;
            c.want_arg = c.want_arg && reduce == VoxelReduce::kMax;
          });
        }
      }
    }
  }
  return cases;
}

Case random_case(Random& random, int number) {
  Case c;
  c.name = "random " + std::to_string(number);
  const int64_t rows[] = {1, 31, 33, 700, 1024, 1025, 3000, 9000, 30000};
  const int64_t caps[] = {-1, 0, 1, 5, 10, 32, 33, 64, 200};
  const DType types[] = {DType::kFloat, DType::kFloat, DType::kHalf, DType::kBFloat16,
                         DType::kDouble};
  c.rows = rows[random.below(number % 8 == 0 ? 9 : 7)];
  c.columns = 3 + random.below(random.below(4) ? 4 : 20);
  c.pad = random.below(2) * random.below(4);
  c.cloud = static_cast<VoxelCloud>(random.below(kClouds));
  c.dtype = types[random.below(5)];
  c.args.grid = random.below(5) ? small_grid() : cubes(kTiny);
  c.args.grid.check_range = random.below(2);
  c.args.order = static_cast<VoxelOrder>(random.below(3));
  c.args.reduce = static_cast<VoxelReduce>(random.below(5));
  c.args.out_dtype = random.below(2) ? c.dtype : types[random.below(5)];
  c.args.center_relative = random.below(3) == 0;
  c.args.max_points = caps[random.below(9)];
  if (c.args.reduce == VoxelReduce::kNone && c.args.max_points < 0) c.args.max_points = 7;
  c.args.max_voxels = random.below(2) ? -1 : (random.below(2) ? random.below(50) : 900);
  c.want_slot = random.below(2);
  c.want_features = random.below(8) != 0;
  c.want_arg = c.want_features && c.args.is_best() && random.below(2);
  c.wide_indices = random.below(2);
  const bool few = c.args.grid.cells_per_sample() > 1000000 || random.below(3);
  const int64_t batches = random.below(2) ? 1 + random.below(few ? 6 : 600) : 0;
  if (batches > 0) {
    for (int64_t b = 0; b <= batches; ++b) c.offsets.push_back(random.below(c.rows + 1));
    std::sort(c.offsets.begin(), c.offsets.end());
    if (random.below(2)) c.offsets.front() = 0;
    if (random.below(2)) c.offsets.back() = c.rows + random.below(3);
  }
  if (random.below(3) == 0) {
    for (int64_t b = 0; b < std::max<int64_t>(1, batches); ++b) {
      c.valid.push_back(random.below(c.rows / std::max<int64_t>(1, batches) + 4) - 1);
    }
  }
  if (random.below(4) == 0) {  // the usual call, which has kernels of its own
    c.columns = 4;
    c.pad = 0;
    c.dtype = DType::kFloat;
    c.args.order = VoxelOrder::kFirst;
    c.args.reduce = random.below(2) ? VoxelReduce::kMean : VoxelReduce::kNone;
    c.args.max_points = 1 + random.below(64);
    c.args.center_relative = c.want_slot = c.want_arg = false;
    c.want_features = true;
    c.offsets.clear();
    c.valid.clear();
  }
  c.table = static_cast<int>(random.below(4)) - 1;
  if (c.table == 0 && c.args.grid.cells_per_sample() > 1000000) c.table = -1;
  c.ranking = static_cast<int>(random.below(3)) - 1;
  if (c.ranking == 0 && c.args.grid.cells_per_sample() > 1000000) c.ranking = -1;
  return c;
}

Bytes make_points(const Case& c, uint64_t seed) {
  Random random(seed);
  std::vector<double> values;
  for (int64_t row = 0; row < c.rows; ++row) {
    for (int64_t column = 0; column < c.columns + c.pad; ++column) {
      const int64_t axis = std::min<int64_t>(column, 2);
      values.push_back(
          coordinate(random, c.cloud, row, column, c.args.grid.lo[axis], c.args.grid.hi[axis]));
    }
  }
  return store(values, c.dtype);
}

void voxelize(Side& side, const Case& c, const Bytes& points) {
  VoxelizeArgs args = c.args;
  args.points.data = side.put(points);
  args.points.dtype = c.dtype;
  args.points.packed = true;
  args.points.rows = c.rows;
  args.points.columns = c.columns;
  args.points.row_stride = c.columns + c.pad;
  args.points.clouds = c.offsets.empty() ? 1 : static_cast<int64_t>(c.offsets.size()) - 1;
  args.points.offsets = side.put(c.offsets, c.wide_indices);
  args.points.lengths = side.put(c.valid, c.wide_indices);
  args.grid.x_major = args.order == VoxelOrder::kXyz;
  const int64_t capacity = args.capacity();
  if (c.want_features) {
    args.features = side.room("features", args.out_dtype, capacity * args.row_values());
  }
  args.indices = side.room<int32_t>("indices", capacity * 4);
  args.num_points = side.room<int32_t>("num_points", capacity);
  args.point_voxel = side.room<int32_t>("point_voxel", c.rows);
  args.counts = side.room<int32_t>("counts", (args.points.clouds + 1) * kVoxelCounts);
  if (c.want_slot) args.point_slot = side.room<int32_t>("point_slot", c.rows);
  if (c.want_arg) args.arg = side.room<int32_t>("arg", capacity * c.columns);
  side.run(args, /*filled=*/true);  // the fused kernel reads small segments by 16 bytes
}

void check(const Case& c, uint64_t seed) {
  INFO(c.name);
  const Plan table("voxel_table", c.table), ranking("voxel_ranking", c.ranking);
  const Bytes points = make_points(c, seed);
  const auto call = [&](Side& side) { voxelize(side, c, points); };
  const Outputs want = [&] {
    const Plan plan("voxel_partitions", 1);
    return run_on(Where::kThread, call);
  }();
  for (const int partitions : {2, 5, 16}) {
    CAPTURE(partitions);
    const Plan plan("voxel_partitions", partitions);
    check_side(Where::kThreads, call, want, c.is_specified);
  }
  for (const int fused : {0, 1}) {
    for (const int common : {0, 1}) {
      CAPTURE(fused);
      CAPTURE(common);
      const Plan fused_plan("voxel_kernels", fused), common_plan("voxel_common", common);
      check_side(Where::kDevice, call, want, c.is_specified);
    }
  }
}

TEST_CASE("corners") {
  for (const Case& c : fixed_cases()) check(c, 17);
}

TEST_CASE("random cases") {
  Random random(20240607);
  for (int number = 0; number < (quick ? 48 : 160); ++number) {
    const Case c = random_case(random, number);
    if (!quick || c.rows <= 3000) check(c, 1000 + number);
  }
}

}  // namespace
