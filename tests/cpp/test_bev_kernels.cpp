// SPDX-License-Identifier: Apache-2.0
//
// bev_max_height: CPU against a loop over points and cells, CUDA against CPU bit for bit.
#include <cmath>
#include <string>
#include <vector>

#include "csrc/kernels/bev/max_height.h"
#include "csrc/kernels/core/plan_override.h"
#include "tests/cpp/bev_cases.h"

namespace {

using namespace torchvox;
using namespace torchvox::testing;

struct Raster {
  std::vector<float> height;
  std::vector<int32_t> top;
  std::vector<int32_t> counts;
};

// The contract, sequentially: a strictly higher point takes the cell, so the first of equals keeps
// it.
template <class T>
Raster expected_raster(const Case& c, const CloudBatch& points, const BevGrid& grid, float fill) {
  const int64_t cells = grid.nx * grid.ny;
  Raster out;
  out.height.assign(static_cast<size_t>(c.batches * cells), fill);
  out.top.assign(out.height.size(), -1);
  out.counts.assign(static_cast<size_t>((c.batches + 1) * kBevCounts), 0);
  for (int64_t row = 0; row < points.rows; ++row) {
    const int64_t b = points.packed_owner(row);
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

BevMaxHeightArgs height_args(const CloudBatch& points, const BevGrid& grid, HeightFormat format) {
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
      run_on_host(args, threads ? backward_for : serial_for);
      check_same(height, expected, what + ": height");
      check_same(counts, raster.counts, what + ": counts");
      if (with_index) check_same(top, raster.top, what + ": top_index");
    }
#ifdef TORCHVOX_CUDA
    if (!has_device()) continue;
    const DeviceBuffer<T> device_data(data);
    const DeviceBuffer<int64_t> offsets(c.offsets);
    const DeviceBuffer<int32_t> valid(c.num_valid);
    const DeviceBuffer<Out> height(static_cast<int64_t>(cells));
    const DeviceBuffer<int32_t> top(static_cast<int64_t>(cells));
    const DeviceBuffer<int32_t> counts(static_cast<int64_t>(raster.counts.size()));
    args.points = packed(c, device_data.data(), offsets.data(), valid.data());
    args.height = height.data();
    args.top_index = with_index ? top.data() : nullptr;
    args.counts = counts.data();
    for (const int64_t plan : {kAutomatic, int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}}) {
      const std::string what =
          name + (with_index ? " with index" : "") + ", CUDA, plan " + std::to_string(plan);
      set_plan_override("bev_table", plan);
      height.fill(kPoison);
      top.fill(kPoison);
      counts.fill(kPoison);
      run_on_device(args);
      check_same(height.host(), expected, what + ": height");
      check_same(counts.host(), raster.counts, what + ": counts");
      if (with_index) check_same(top.host(), raster.top, what + ": top_index");
    }
    set_plan_override("bev_table", kAutomatic);
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
  run_on_host(args, backward_for);
  check_same(actual, expected, name + ": gradient");
#ifdef TORCHVOX_CUDA
  if (!has_device()) return;
  const DeviceBuffer<T> device_data(data), out(static_cast<int64_t>(expected.size()));
  const DeviceBuffer<int64_t> offsets(c.offsets);
  const DeviceBuffer<int32_t> valid(c.num_valid), top(raster.top);
  const DeviceBuffer<float> device_grad(grad);
  args.points = packed(c, device_data.data(), offsets.data(), valid.data());
  args.grad_height = device_grad.data();
  args.top_index = top.data();
  args.grad_points = out.data();
  run_on_device(args);
  check_same(out.host(), expected, name + ": gradient, CUDA");
#endif
}

template <class T>
void check_type(const Case& c, const char* type) {
  const std::vector<T> data = stored_as<T>(c);
  for (const BevOrientation orientation :
       {BevOrientation::kGrid, BevOrientation::kImage, BevOrientation::kNorthUp}) {
    const BevGrid grid = grid_of(c, orientation);
    const CloudBatch points = packed(c, data.data(), c.offsets.data(), c.num_valid.data());
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
  if (!has_device()) std::printf("CUDA skipped: no CUDA device\n");
#endif
  return finish("test_bev_kernels");
}
