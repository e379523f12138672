// SPDX-License-Identifier: Apache-2.0
//
// The batches that the tests of the bird's-eye-view kernels run over.
#pragma once

#include "csrc/kernels/bev/grid.h"
#include "tests/cpp/kernel_test.h"

namespace torchvox::testing {

// A packed batch in host memory.
struct Case {
  std::string name;
  std::vector<float> values;  // [rows, stride]
  int64_t columns = 4;
  int64_t stride = 4;
  int64_t batches = 1;
  std::vector<int64_t> offsets = {};  // empty: not given
  std::vector<int32_t> num_valid = {};  // empty: not given
  int64_t nx = 64;
  int64_t ny = 48;

  int64_t rows() const { return static_cast<int64_t>(values.size()) / stride; }
};

inline BevGrid grid_of(const Case& c, BevOrientation orientation) {
  BevGrid grid;
  const float lower[3] = {-50.f, -40.f, -3.f}, upper[3] = {50.f, 40.f, 5.f};
  for (int axis = 0; axis < 3; ++axis) {
    grid.lower[axis] = lower[axis];
    grid.upper[axis] = upper[axis];
  }
  grid.nx = c.nx;
  grid.ny = c.ny;
  grid.resolution[0] = (upper[0] - lower[0]) / static_cast<float>(c.nx);
  grid.resolution[1] = (upper[1] - lower[1]) / static_cast<float>(c.ny);
  grid.orientation = orientation;
  return grid;
}

inline std::vector<float> random_points(int64_t rows, int64_t stride, uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < rows; ++i) {
    const float edge[] = {kNan,  kInfinity,  -kInfinity, -0.f,  49.999996f, 50.f,
                          -50.f, 39.999996f, 40.f,       1e30f, -3.f,       5.f};
    for (int64_t j = 0; j < stride; ++j) {
      // Millimeter steps, so that many heights tie.
      const float value = std::round(random.uniform(-55.f, 55.f) * 1000.f) / 1000.f;
      const bool odd = random.below(40) == 0;
      values.push_back(odd ? edge[random.below(12)] : (j == 2 ? value / 10.f : value));
    }
  }
  return values;
}

// Finite points inside the range, so that sums over dense cells stay numbers.
inline std::vector<float> plain_points(int64_t rows, uint64_t seed) {
  Random random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < rows; ++i) {
    for (const float most : {49.f, 39.f, 2.5f, 1.f}) values.push_back(random.uniform(-most, most));
  }
  return values;
}

inline std::vector<Case> cases() {
  std::vector<Case> all;
  all.push_back({"no points", {}});
  all.push_back({"one point", {1.f, 2.f, 3.f, 4.f}});
  all.push_back({"two equal points", {1.f, 2.f, 3.f, 4.f, 1.f, 2.f, 3.f, 5.f}});
  all.push_back({"minus zero ties with zero", {1.f, 2.f, -0.f, 4.f, 1.f, 2.f, 0.f, 5.f}});
  all.push_back({"all out of range", {60.f, 2.f, 3.f, 4.f, 1.f, 2.f, 5.f, 5.f}});
  all.push_back({"many points", random_points(20001, 4, 1)});
  Case one_cell{"one cell", random_points(5000, 4, 2)};
  one_cell.nx = one_cell.ny = 1;
  all.push_back(one_cell);
  // Up to a warp, a warp and a thread block a cell.
  Case dense{"dense cells", plain_points(30000, 6)};
  for (const int64_t cells : {1, 2, 8}) {
    dense.nx = dense.ny = cells;
    all.push_back(dense);
  }
  Case wide{"far more cells than points", random_points(3000, 4, 7)};
  wide.nx = 512;
  wide.ny = 301;
  all.push_back(wide);
  Case odd{"odd cells, wide rows", random_points(3001, 7, 3)};
  odd.columns = 3;
  odd.stride = 7;
  odd.nx = 33;
  odd.ny = 7;
  all.push_back(odd);
  Case batch{"a batch with empty samples and points after the last", random_points(4000, 4, 4)};
  batch.batches = 4;
  batch.offsets = {0, 0, 1500, 1500, 3900};
  all.push_back(batch);
  batch.name = "padded samples";
  batch.num_valid = {3, 700, 0, 100000};
  all.push_back(batch);
  batch.name = "wrong offsets";
  batch.offsets = {-5, 2000, 1000, 9000000000, 17};
  batch.num_valid = {-1, 700, 5, 100000};
  all.push_back(batch);
  Case none{"no samples", random_points(100, 4, 5)};
  none.batches = 0;
  none.offsets = {0};
  all.push_back(none);
  return all;
}

template <class Body>
void each_case(const Body& body) {
  for (const Case& c : cases()) {
    for (const BevOrientation orientation :
         {BevOrientation::kGrid, BevOrientation::kImage, BevOrientation::kNorthUp}) {
      INFO(c.name);
      CAPTURE(orientation);
      body(c, grid_of(c, orientation));
    }
  }
}

template <class T>
CloudBatch packed(Side& side, const Case& c, const std::vector<T>& data) {
  CloudBatch points;
  points.data = side.put(data);
  points.dtype = dtype_of<T>();
  points.rows = c.rows();
  points.columns = c.columns;
  points.row_stride = c.stride;
  points.packed = true;
  points.clouds = c.batches;
  points.offsets = side.put(c.offsets, true);
  points.lengths = {side.put(c.num_valid), false};
  return points;
}

}  // namespace torchvox::testing
