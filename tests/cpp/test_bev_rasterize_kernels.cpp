// SPDX-License-Identifier: Apache-2.0
//
// bev_rasterize: every channel against a loop over the points of each cell, every side and its
// gradients against one thread.
#include "csrc/kernels/bev/rasterize.h"
#include "csrc/kernels/core/ordered_sum.h"
#include "tests/cpp/bev_cases.h"

using namespace torchvox;
using namespace torchvox::testing;

namespace {

constexpr int kSlices = 3;
constexpr int kOccupancySlices = 33;  // one more than a word has bits
constexpr float kFill = -7.5f;

// Every channel once; slicings have one plane a slice, tables behind each other.
BevPlanes all_planes() {
  BevPlanes planes;
  for (const BevChannel channel :
       {BevChannel::kHeightMax, BevChannel::kHeightMin, BevChannel::kHeightMean,
        BevChannel::kHeightRange, BevChannel::kHeightNorm, BevChannel::kIntensityTop,
        BevChannel::kIntensityMean, BevChannel::kIntensityMax, BevChannel::kCount,
        BevChannel::kDensity}) {
    planes.plane[planes.count++].channel = channel;
  }
  const auto add_slices = [&](BevChannel channel, int slices, int table_rows) {
    for (int k = 0; k < slices; ++k) {
      BevPlane& plane = planes.plane[planes.count++];
      plane.channel = channel;
      plane.slice = static_cast<int16_t>(k);
      plane.slices = static_cast<int16_t>(slices);
      plane.table_row = static_cast<int16_t>(planes.sliced_rows);
    }
    planes.sliced_rows += table_rows;
  };
  add_slices(BevChannel::kSlices, kSlices, kSlices);
  add_slices(BevChannel::kOccupancy, kOccupancySlices, (kOccupancySlices + 31) / 32);
  return planes;
}

// Rows of the points of each cell, ascending, as voxel_csr groups them.
struct Groups {
  std::vector<int32_t> offsets;
  std::vector<int32_t> rows;
};

Groups group(const std::vector<int32_t>& point_cell, int64_t cells) {
  Groups groups;
  groups.offsets.assign(cells + 1, 0);
  for (const int32_t cell : point_cell) {
    if (cell >= 0) ++groups.offsets[cell + 1];
  }
  for (size_t i = 1; i < groups.offsets.size(); ++i) groups.offsets[i] += groups.offsets[i - 1];
  std::vector<int32_t> next = groups.offsets;
  groups.rows.assign(point_cell.size(), -1);
  for (size_t row = 0; row < point_cell.size(); ++row) {
    if (point_cell[row] < 0) continue;
    groups.rows[next[point_cell[row]]++] = static_cast<int32_t>(row);
  }
  return groups;
}

BevRasterizeArgs raster_args(const BevGrid& grid) {
  BevRasterizeArgs args;
  args.grid = grid;
  args.planes = all_planes();
  args.density_base = 4;
  for (int n = 0; n < args.density_base; ++n) args.density[n] = static_cast<float>(n) / 4.f;
  args.height_steps = 1 << 20;
  args.fill = kFill;
  return args;
}

// What the planes of one cell hold, from its points alone.
std::vector<float> expected_cell(const BevRasterizeArgs& args, const int32_t* rows, int32_t count,
                                 const float* values, int64_t stride) {
  std::vector<float> cell;
  const float lower = args.grid.lower[2], upper = args.grid.upper[2];
  const auto height = [&](int32_t i) { return values[rows[i] * stride + 2] + 0.f; };
  int32_t top = 0;
  float lowest = kInfinity, largest = -kInfinity;
  int64_t steps = 0;
  CascadeSum<float> sum;
  for (int32_t i = 0; i < count; ++i) {
    const float intensity = args.intensity[rows[i]];
    if (height(i) > height(top)) top = i;
    lowest = std::fmin(lowest, height(i));
    if (std::isnan(largest) || std::isnan(intensity)) {
      largest = kNan;
    } else if (intensity > largest) {
      largest = intensity + 0.f;
    }
    steps += static_cast<int64_t>(std::rint(
        (static_cast<double>(height(i)) - static_cast<double>(lower)) * args.height_steps));
    sum.add(intensity);
  }
  const auto n = static_cast<float>(count);
  if (count == 0) {
    cell.assign(8, kFill);
    cell.insert(cell.end(), 2, 0.f);
  } else {
    const double mean = static_cast<double>(steps) / static_cast<double>(count);
    cell = {height(top),
            lowest,
            static_cast<float>(static_cast<double>(lower) + mean / args.height_steps),
            height(top) - lowest,
            (height(top) - lower) / (upper - lower),
            args.intensity[rows[top]],
            sum.total() / n,
            largest,
            n,
            count < args.density_base ? args.density[count] : 1.f};
  }
  for (const int slices : {kSlices, kOccupancySlices}) {
    const bool occupancy = slices == kOccupancySlices;
    std::vector<float> sliced(slices, occupancy ? 0.f : kFill);
    std::vector<bool> hit(slices, false);
    const float thickness = (upper - lower) / static_cast<float>(slices);
    for (int32_t i = 0; i < count; ++i) {
      const auto k = static_cast<size_t>(
          std::fmin(std::floor((height(i) - lower) / thickness), static_cast<float>(slices - 1)));
      if (occupancy) {
        sliced[k] = 1.f;
      } else if (!hit[k] || height(i) > sliced[k]) {
        sliced[k] = height(i);
      }
      hit[k] = true;
    }
    cell.insert(cell.end(), sliced.begin(), sliced.end());
  }
  return cell;
}

// NaN of any payload becomes one NaN, so that bits compare.
std::vector<float> one_nan(std::vector<float> values) {
  for (float& v : values) {
    if (std::isnan(v)) v = kNan;
  }
  return values;
}

TEST_CASE("every channel and its gradients") {
  each_case([](const Case& c, const BevGrid& grid) {
    const int64_t cells = c.batches * grid.cells();
    const auto point_cell = on_every_side([&](Side& side) {
                              BevCellsArgs args;
                              args.points = packed(side, c, c.values);
                              args.grid = grid;
                              args.point_cell = side.room<int32_t>("point_cell", c.rows());
                              side.run(args);
                            }).get<int32_t>("point_cell");
    const Groups groups = group(point_cell, cells);

    // Intensity is column 3 where rows have one, else column 2.
    const int64_t column = c.columns > 3 ? 3 : 2;
    BevRasterizeArgs args = raster_args(grid);
    args.intensity = {c.values.data() + column, DType::kFloat, c.stride};
    const int planes = args.planes.count;
    std::vector<float> expected(cells * planes), grad(expected.size());
    for (int64_t cell = 0; cell < cells; ++cell) {
      const int32_t first = groups.offsets[cell], count = groups.offsets[cell + 1] - first;
      const std::vector<float> values =
          expected_cell(args, groups.rows.data() + first, count, c.values.data(), c.stride);
      const int64_t sample = cell / grid.cells(), in_sample = cell % grid.cells();
      for (int p = 0; p < planes; ++p) {
        expected[(sample * planes + p) * grid.cells() + in_sample] = values[p];
      }
    }
    std::vector<int32_t> counts;  // of the first side
    for (const Where where : {Where::kThread, Where::kThreads, Where::kDevice}) {
      if (where == Where::kDevice && !has_device()) continue;
      CAPTURE(where);
      const Outputs got = run_on(where, [&](Side& side) {
        BevRasterizeArgs bound = args;
        bound.points = packed(side, c, c.values);
        bound.intensity.data = static_cast<const float*>(bound.points.data) + column;
        bound.cell_offsets = side.put(groups.offsets);
        bound.cell_points = side.put(groups.rows);
        bound.image = side.room<float>("image", expected.size());
        bound.counts = side.room<int32_t>("counts", (c.batches + 1) * kBevCounts);
        side.run(bound);
      });
      if (counts.empty()) counts = got.get<int32_t>("counts");
      CHECK_SAME(one_nan(got.get<float>("image")), one_nan(expected));
      CHECK_SAME(got.get<int32_t>("counts"), counts);
    }

    for (size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<float>(i % 97) - 48.f;
    on_every_side([&](Side& side) {
      BevRasterizeBackwardArgs backward;
      backward.points = packed(side, c, c.values);
      backward.grid = grid;
      backward.planes = args.planes;
      backward.grad_image = side.put(grad);
      backward.grad_points = side.room<float>("grad_points", c.rows() * c.columns);
      backward.grad_features = side.room<float>("grad_features", c.rows());
      side.run(backward);
    });
  });
}

}  // namespace
