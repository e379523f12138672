// SPDX-License-Identifier: Apache-2.0
//
// The clouds and arguments that the tests of the voxel kernels run over.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "csrc/kernels/voxel/voxelize/voxelize.h"

namespace torchvox::testing {

struct Random {
  uint64_t state;
  uint32_t next() {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(state >> 33);
  }
  double uniform() { return next() / 2147483648.0; }
  int64_t below(int64_t n) { return n > 0 ? static_cast<int64_t>(next() % n) : 0; }
};

enum Cloud {
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
  Cloud cloud = kUniform;
  DType dtype = DType::kFloat;
  VoxelizeArgs args;
  std::vector<int64_t> offsets;  // empty: one sample
  std::vector<int64_t> valid;
  bool wide_indices = false;
  int table = -1;
  int ranking = -1;
  int kernels = -1;
  int common = -1;
  bool want_slot = false;
  bool want_arg = false;
  bool want_features = true;
};

inline double coordinate(Random& random, Cloud cloud, int64_t row, int64_t column, double lo,
                         double hi) {
  const double u = random.uniform();
  if (column >= 3) return u < 0.02 ? (u < 0.01 ? NAN : -0.0) : std::floor(u * 64) / 8 - 4;
  switch (cloud) {
    case kClustered: {
      const double at = lo + (hi - lo) * std::floor(u * 37) / 37;
      return at + random.uniform() * random.uniform() * 0.3;
    }
    case kOneVoxel: return lo + 0.01 * u;
    case kTwoVoxels: return lo + 0.01 * u + (column == 0 && row % 2 ? 0.95 * (hi - lo) : 0);
    case kHot: return random.below(3) ? lo + (hi - lo) * u : lo;
    case kDistinct: {
      const int64_t cell = column == 0 ? row % 40 : column == 1 ? row / 40 % 40 : row / 1600 % 4;
      return lo + cell * 0.2 + 0.1;
    }
    case kNotFinite: return row % 3 == 0 ? (u < 0.5 ? NAN : INFINITY) : lo + (hi - lo) * u;
    case kOutside: return u < 0.5 ? 1e30 : lo - 1 + (hi - lo + 2) * u;
    default: return lo - 0.05 + (hi - lo + 0.1) * u;
  }
}

inline VoxelGrid small_grid() {
  VoxelGrid grid;
  const float lo[3] = {-4, -4, -1}, hi[3] = {4, 4, 1}, size[3] = {0.2f, 0.2f, 0.5f};
  for (int axis = 0; axis < 3; ++axis) {
    grid.lo[axis] = lo[axis];
    grid.hi[axis] = hi[axis];
    grid.size[axis] = size[axis];
    grid.cells[axis] = static_cast<int32_t>(cells_on_axis(lo[axis], hi[axis], size[axis]));
  }
  return grid;
}

// Mostly one point a voxel.
inline VoxelGrid fine_grid() {
  VoxelGrid grid = small_grid();
  for (int axis = 0; axis < 3; ++axis) {
    grid.size[axis] = 1.f / 64;
    grid.cells[axis] =
        static_cast<int32_t>(cells_on_axis(grid.lo[axis], grid.hi[axis], grid.size[axis]));
  }
  return grid;
}

// Keys far past 32 bits.
inline VoxelGrid large_grid() {
  VoxelGrid grid = small_grid();
  for (int axis = 0; axis < 3; ++axis) {
    grid.size[axis] = 1.f / (1 << 17);
    grid.cells[axis] =
        static_cast<int32_t>(cells_on_axis(grid.lo[axis], grid.hi[axis], grid.size[axis]));
  }
  return grid;
}

// The corners that a random draw would miss. `quick` is for tools that slow kernels down a
// hundredfold: smaller clouds, still one for every launch plan.
inline std::vector<Case> fixed_cases(bool quick) {
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
    c.name = "";  // unspecified result: only run
  });
  for (const Cloud cloud : {kClustered, kUniform, kHot}) {
    for (const VoxelReduce reduce : {VoxelReduce::kMean, VoxelReduce::kNone}) {
      if (quick && (cloud != kClustered || reduce != VoxelReduce::kMean)) continue;
      add("many points", [&](Case& c) {
        c.rows = 600000;
        c.cloud = cloud;
        c.args.reduce = reduce;
        c.args.max_points = reduce == VoxelReduce::kNone ? 4 : 32;
        c.args.max_voxels = -1;
        if (cloud == kUniform) c.args.grid = fine_grid();
      });
    }
  }
  for (const int64_t rows : {4096, 4097, 20000, 70000}) {
    for (const Cloud cloud : {kOneVoxel, kTwoVoxels}) {
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

inline Case random_case(Random& random, int number) {
  Case c;
  c.name = "random " + std::to_string(number);
  const int64_t rows[] = {1, 31, 33, 700, 1024, 1025, 3000, 9000, 30000};
  const int64_t caps[] = {-1, 0, 1, 5, 10, 32, 33, 64, 200};
  const DType types[] = {DType::kFloat, DType::kFloat, DType::kHalf, DType::kBFloat16,
                         DType::kDouble};
  c.rows = rows[random.below(number % 8 == 0 ? 9 : 7)];
  c.columns = 3 + random.below(random.below(4) ? 4 : 20);
  c.pad = random.below(2) * random.below(4);
  c.cloud = static_cast<Cloud>(random.below(kClouds));
  c.dtype = types[random.below(5)];
  c.args.grid = random.below(5) ? small_grid() : large_grid();
  c.args.grid.check_range = random.below(2);
  c.args.order = static_cast<VoxelOrder>(random.below(3));
  c.args.reduce = static_cast<VoxelReduce>(random.below(5));
  c.args.out_dtype = random.below(2) ? c.dtype : types[random.below(5)];
  c.args.center_relative = random.below(3) == 0;
  c.args.max_points = caps[random.below(9)];
  if (c.args.reduce == VoxelReduce::kNone && c.args.max_points < 0) c.args.max_points = 7;
  c.args.max_voxels = random.below(2) ? -1 : (random.below(2) ? random.below(50) : 900);
  c.want_slot = random.below(2);
  c.want_arg = c.args.is_best() && random.below(2);
  c.want_features = random.below(8) != 0;
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

}  // namespace torchvox::testing
