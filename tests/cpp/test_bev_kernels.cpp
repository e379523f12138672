// SPDX-License-Identifier: Apache-2.0
//
// Bird's-eye-view rasters: CPU against a loop over points and cells, CUDA against CPU bit for bit.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "csrc/kernels/bev/bev_max_height.h"
#include "csrc/kernels/bev/bev_rasterize.h"
#include "tests/cpp/check.h"

namespace {

using namespace torchvox;
using testing::check_same;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A packed batch in host memory. `dtype` says how `values` is stored in `bytes`.
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

BevGrid grid_of(const Case& c, BevOrientation orientation) {
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

std::vector<float> random_points(int64_t rows, int64_t stride, uint64_t seed) {
  testing::Random random(seed);
  std::vector<float> values;
  for (int64_t i = 0; i < rows; ++i) {
    const float edge[] = {kNan,  kInfinity,  -kInfinity, -0.f,  49.999996f, 50.f,
                          -50.f, 39.999996f, 40.f,       1e30f, -3.f,       5.f};
    for (int64_t j = 0; j < stride; ++j) {
      // Millimetre steps, so that many heights tie.
      const float value = std::round(random.uniform(-55.f, 55.f) * 1000.f) / 1000.f;
      const bool odd = random.below(40) == 0;
      values.push_back(odd ? edge[random.below(12)] : (j == 2 ? value / 10.f : value));
    }
  }
  return values;
}

std::vector<Case> cases() {
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

// The case with its values stored as T, host side.
template <class T>
std::vector<T> stored_as(const Case& c) {
  std::vector<T> data;
  for (const float v : c.values) data.push_back(narrow<T>(v));
  return data;
}

template <class T>
constexpr DType dtype_of() {
  return sizeof(T) == 8 ? DType::kDouble : (sizeof(T) == 4 ? DType::kFloat : DType::kHalf);
}

template <class T>
PackedPoints packed(const Case& c, const T* data, const int64_t* offsets, const int32_t* valid) {
  PackedPoints points;
  points.data = data;
  points.dtype = dtype_of<T>();
  points.rows = c.rows();
  points.columns = c.columns;
  points.row_stride = c.stride;
  points.batches = c.batches;
  points.offsets = {c.offsets.empty() ? nullptr : offsets, true};
  points.num_valid = {c.num_valid.empty() ? nullptr : valid, false};
  return points;
}

struct Raster {
  std::vector<float> height;
  std::vector<int32_t> top;
  std::vector<int32_t> counts;
};

// The contract, sequentially: a strictly higher point takes the cell, so the first of equals keeps
// it.
template <class T>
Raster expected_raster(const Case& c, const PackedPoints& points, const BevGrid& grid, float fill) {
  const int64_t cells = grid.nx * grid.ny;
  Raster out;
  out.height.assign(static_cast<size_t>(c.batches * cells), fill);
  out.top.assign(out.height.size(), -1);
  out.counts.assign(static_cast<size_t>((c.batches + 1) * kBevCounts), 0);
  for (int64_t row = 0; row < points.rows; ++row) {
    const int64_t b = points.valid_sample(row);
    if (b < 0) continue;
    int32_t* counts = &out.counts[static_cast<size_t>((b + 1) * kBevCounts)];
    const T* stored = static_cast<const T*>(points.data) + row * points.row_stride;
    const auto x = widen(stored[0]), y = widen(stored[1]), z = widen(stored[2]);
    if (!std::isfinite(x) || !std::isfinite(y) || !std::isfinite(z)) {
      ++counts[kBevNonFinite];
      continue;
    }
    const auto qx = std::floor((x - grid.lower[0]) / grid.resolution[0]);
    const auto qy = std::floor((y - grid.lower[1]) / grid.resolution[1]);
    const bool inside = x >= grid.lower[0] && x < grid.upper[0] && y >= grid.lower[1] &&
        y < grid.upper[1] && z >= grid.lower[2] && z < grid.upper[2] &&
        qx < static_cast<float>(grid.nx) && qy < static_cast<float>(grid.ny);
    if (!inside) {
      ++counts[kBevOutOfRange];
      continue;
    }
    ++counts[kBevPointsUsed];
    const auto ix = static_cast<int64_t>(qx), iy = static_cast<int64_t>(qy);
    int64_t cell = iy * grid.nx + ix;
    if (grid.orientation == BevOrientation::kImage) {
      cell = (grid.nx - 1 - ix) * grid.ny + (grid.ny - 1 - iy);
    } else if (grid.orientation == BevOrientation::kNorthUp) {
      cell = (grid.ny - 1 - iy) * grid.nx + ix;
    }
    const auto at = static_cast<size_t>(b * cells + cell);
    const float height = static_cast<float>(z) + 0.f;
    if (out.top[at] < 0) ++counts[kBevCellsFilled];
    if (out.top[at] < 0 || height > out.height[at]) {
      out.height[at] = height;
      out.top[at] = static_cast<int32_t>(row);
    }
  }
  for (int64_t b = 1; b <= c.batches; ++b) {
    for (int k = 0; k < kBevCounts; ++k) {
      out.counts[static_cast<size_t>(k)] += out.counts[static_cast<size_t>(b * kBevCounts + k)];
    }
  }
  return out;
}

BevMaxHeightArgs height_args(const PackedPoints& points, const BevGrid& grid, HeightFormat format) {
  BevMaxHeightArgs args;
  args.points = points;
  args.grid = grid;
  args.code.format = format;
  args.code.fill = -7.5f;
  args.code.z0 = grid.lower[2];
  args.code.z1 = grid.upper[2];
  return args;
}

// Stored heights of type Out, with and without an index: CPU against `raster`, CUDA against the
// CPU.
template <class T, class Out>
void check_height(const Case& c, const std::string& name, const std::vector<T>& data,
                  const BevGrid& grid, HeightFormat format, const Raster& raster) {
  const size_t cells = raster.height.size();
  BevMaxHeightArgs args =
      height_args(packed(c, data.data(), c.offsets.data(), c.num_valid.data()), grid, format);
  std::vector<Out> expected;
  for (size_t i = 0; i < cells; ++i) {
    const bool empty = raster.top[i] < 0;
    if (format == HeightFormat::kFloat) {
      expected.push_back(static_cast<Out>(empty ? args.code.fill : raster.height[i]));
    } else if (format == HeightFormat::kUInt8) {
      expected.push_back(static_cast<Out>(empty ? 0 : args.code.to_uint8(raster.height[i])));
    } else {
      expected.push_back(static_cast<Out>(empty ? 0 : args.code.to_uint16(raster.height[i])));
    }
  }
  for (const bool with_index : {false, true}) {
    for (const bool threads : {false, true}) {
      const std::string what =
          name + (with_index ? " with index" : "") + (threads ? ", threads" : "");
      std::vector<Out> height(cells, Out(99));
      std::vector<int32_t> top(cells, 99), counts(raster.counts.size(), 99);
      args.height = height.data();
      args.top_index = with_index ? top.data() : nullptr;
      args.counts = counts.data();
      testing::run_on_host(args, threads ? testing::backward_for : serial_for);
      check_same(height, expected, what + ": height");
      check_same(counts, raster.counts, what + ": counts");
      if (with_index) check_same(top, raster.top, what + ": top_index");
    }
#ifdef TORCHVOX_CUDA
    if (!testing::has_device()) continue;
    const std::string what = name + (with_index ? " with index" : "") + ", CUDA";
    const testing::DeviceBuffer<T> device_data(data);
    const testing::DeviceBuffer<int64_t> offsets(c.offsets);
    const testing::DeviceBuffer<int32_t> valid(c.num_valid);
    const testing::DeviceBuffer<Out> height(static_cast<int64_t>(cells));
    const testing::DeviceBuffer<int32_t> top(static_cast<int64_t>(cells));
    const testing::DeviceBuffer<int32_t> counts(static_cast<int64_t>(raster.counts.size()));
    args.points = packed(c, device_data.data(), offsets.data(), valid.data());
    args.height = height.data();
    args.top_index = with_index ? top.data() : nullptr;
    args.counts = counts.data();
    testing::run_on_device(args);
    check_same(height.host(), expected, what + ": height");
    check_same(counts.host(), raster.counts, what + ": counts");
    if (with_index) check_same(top.host(), raster.top, what + ": top_index");
    args.points = packed(c, data.data(), c.offsets.data(), c.num_valid.data());
#endif
  }
}

// The gradient of a cell goes to its top point's z.
template <class T>
void check_gradient(const Case& c, const std::string& name, const std::vector<T>& data,
                    const BevGrid& grid, const Raster& raster) {
  std::vector<float> grad(raster.height.size());
  for (size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<float>(i % 97) - 48.f;
  std::vector<T> expected(static_cast<size_t>(c.rows() * c.columns), narrow<T>(0.f));
  for (size_t i = 0; i < grad.size(); ++i) {
    if (raster.top[i] >= 0) {
      expected[static_cast<size_t>(raster.top[i] * c.columns + 2)] = narrow<T>(grad[i]);
    }
  }
  BevMaxHeightBackwardArgs args;
  args.points = packed(c, data.data(), c.offsets.data(), c.num_valid.data());
  args.grid = grid;
  args.grad_height = grad.data();
  args.top_index = raster.top.data();
  std::vector<T> actual(expected.size(), narrow<T>(99.f));
  args.grad_points = actual.data();
  testing::run_on_host(args, testing::backward_for);
  check_same(actual, expected, name + ": gradient");
#ifdef TORCHVOX_CUDA
  if (!testing::has_device()) return;
  const testing::DeviceBuffer<T> device_data(data), out(static_cast<int64_t>(expected.size()));
  const testing::DeviceBuffer<int64_t> offsets(c.offsets);
  const testing::DeviceBuffer<int32_t> valid(c.num_valid), top(raster.top);
  const testing::DeviceBuffer<float> device_grad(grad);
  args.points = packed(c, device_data.data(), offsets.data(), valid.data());
  args.grad_height = device_grad.data();
  args.top_index = top.data();
  args.grad_points = out.data();
  testing::run_on_device(args);
  check_same(out.host(), expected, name + ": gradient, CUDA");
#endif
}

template <class T>
void check_type(const Case& c, const char* type) {
  const std::vector<T> data = stored_as<T>(c);
  for (const BevOrientation orientation :
       {BevOrientation::kGrid, BevOrientation::kImage, BevOrientation::kNorthUp}) {
    const BevGrid grid = grid_of(c, orientation);
    const PackedPoints points = packed(c, data.data(), c.offsets.data(), c.num_valid.data());
    const Raster raster = expected_raster<T>(c, points, grid, -7.5f);
    const std::string name =
        c.name + ", " + type + ", orientation " + std::to_string(static_cast<int>(orientation));
    check_height<T, float>(c, name, data, grid, HeightFormat::kFloat, raster);
    check_height<T, uint8_t>(c, name + ", uint8", data, grid, HeightFormat::kUInt8, raster);
    check_height<T, uint16_t>(c, name + ", uint16", data, grid, HeightFormat::kUInt16, raster);
    check_gradient<T>(c, name, data, grid, raster);
  }
}

}  // namespace

int main() {
  for (const Case& c : cases()) {
    check_type<float>(c, "float");
    check_type<double>(c, "double");
    check_type<Half>(c, "half");
  }
#ifdef TORCHVOX_CUDA
  if (!testing::has_device()) std::printf("CUDA skipped: no CUDA device\n");
#endif
  return testing::finish("test_bev_kernels");
}
