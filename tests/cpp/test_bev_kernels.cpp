// SPDX-License-Identifier: Apache-2.0
//
// bev_max_height: one thread against a loop over points and cells, every side and plan against it.
#include "csrc/kernels/bev/max_height.h"
#include "tests/cpp/bev_cases.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

struct Raster {
  std::vector<float> height;
  std::vector<int32_t> top;
  std::vector<int32_t> counts;
};

constexpr float kFill = -7.5f;

// The contract, sequentially: a strictly higher point takes the cell, so the first of equals keeps
// it.
template <class T>
Raster expected_raster(const Case& c, const CloudBatch& points, const BevGrid& grid) {
  const int64_t cells = grid.nx * grid.ny;
  Raster out;
  out.height.assign(c.batches * cells, kFill);
  out.top.assign(out.height.size(), -1);
  out.counts.assign((c.batches + 1) * kBevCounts, 0);
  for (int64_t row = 0; row < points.rows; ++row) {
    const int64_t b = points.packed_owner(row);
    if (b < 0) continue;
    int32_t* counts = &out.counts[(b + 1) * kBevCounts];
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
    const int64_t at = b * cells + cell;
    const float height = static_cast<float>(z) + 0.f;
    if (out.top[at] < 0) ++counts[kBevCellsFilled];
    if (out.top[at] < 0 || height > out.height[at]) {
      out.height[at] = height;
      out.top[at] = static_cast<int32_t>(row);
    }
  }
  for (int64_t b = 1; b <= c.batches; ++b) {
    for (int k = 0; k < kBevCounts; ++k) out.counts[k] += out.counts[b * kBevCounts + k];
  }
  return out;
}

// Stored heights of type Out, with and without an index.
template <class Out, class T>
void check_height(const Case& c, const std::vector<T>& data, const BevGrid& grid,
                  HeightFormat format, const Raster& raster) {
  CAPTURE(format);
  HeightCode code;
  code.format = format;
  code.fill = kFill;
  code.z0 = grid.lower[2];
  code.z1 = grid.upper[2];
  std::vector<Out> expected;
  for (size_t i = 0; i < raster.height.size(); ++i) {
    const bool empty = raster.top[i] < 0;
    if (format == HeightFormat::kFloat) {
      expected.push_back(static_cast<Out>(empty ? kFill : raster.height[i]));
    } else if (format == HeightFormat::kUInt8) {
      expected.push_back(static_cast<Out>(empty ? 0 : code.to_uint8(raster.height[i])));
    } else {
      expected.push_back(static_cast<Out>(empty ? 0 : code.to_uint16(raster.height[i])));
    }
  }
  for (const bool with_index : {false, true}) {
    CAPTURE(with_index);
    const auto call = [&](Side& side) {
      BevMaxHeightArgs args;
      args.points = packed(side, c, data);
      args.grid = grid;
      args.code = code;
      args.height = side.room<Out>("height", expected.size());
      if (with_index) args.top_index = side.room<int32_t>("top", expected.size());
      args.counts = side.room<int32_t>("counts", raster.counts.size());
      side.run(args);
    };
    const Outputs got = on_every_side(call);
    CHECK_SAME(got.get<Out>("height"), expected);
    CHECK_SAME(got.get<int32_t>("counts"), raster.counts);
    if (with_index) CHECK_SAME(got.get<int32_t>("top"), raster.top);
    for (const int table : {0, 1, 2, 3}) {
      CAPTURE(table);
      const Plan plan("bev_table", table);
      check_side(Where::kDevice, call, got);
    }
  }
}

// The gradient of a cell goes to its top point's z.
template <class T>
void check_gradient(const Case& c, const std::vector<T>& data, const BevGrid& grid,
                    const Raster& raster) {
  std::vector<float> grad(raster.height.size());
  std::vector<T> expected(c.rows() * c.columns, narrow<T>(0.f));
  for (size_t i = 0; i < grad.size(); ++i) {
    grad[i] = static_cast<float>(i % 97) - 48.f;
    if (raster.top[i] >= 0) expected[raster.top[i] * c.columns + 2] = narrow<T>(grad[i]);
  }
  const Outputs got = on_every_side([&](Side& side) {
    BevMaxHeightBackwardArgs args;
    args.points = packed(side, c, data);
    args.grid = grid;
    args.grad_height = side.put(grad);
    args.top_index = side.put(raster.top);
    args.grad_points = side.room<T>("grad_points", expected.size());
    side.run(args);
  });
  CHECK_SAME(got.get<T>("grad_points"), expected);
}

TEST_CASE_TEMPLATE("heights and their gradient", T, float, double, Half) {
  each_case([](const Case& c, const BevGrid& grid) {
    const std::vector<T> data = narrowed<T>(c.values);
    Side side(Where::kThread);
    const Raster raster = expected_raster<T>(c, packed(side, c, data), grid);
    check_height<float>(c, data, grid, HeightFormat::kFloat, raster);
    check_height<uint8_t>(c, data, grid, HeightFormat::kUInt8, raster);
    check_height<uint16_t>(c, data, grid, HeightFormat::kUInt16, raster);
    check_gradient(c, data, grid, raster);
  });
}

}  // namespace
