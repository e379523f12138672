// SPDX-License-Identifier: Apache-2.0
//
// bev_rasterize: every channel on the CPU against a loop over the points of each cell, whatever
// order threads run in, and CUDA against CPU bit for bit, gradients too.
#include <cmath>
#include <string>
#include <vector>

#include "csrc/kernels/bev/rasterize.h"
#include "csrc/kernels/core/ordered_sum.h"
#include "tests/cpp/bev_cases.h"

namespace {

using namespace torchvox;
using namespace torchvox::testing;

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
  groups.offsets.assign(static_cast<size_t>(cells + 1), 0);
  for (const int32_t cell : point_cell) {
    if (cell >= 0) ++groups.offsets[static_cast<size_t>(cell) + 1];
  }
  for (size_t i = 1; i < groups.offsets.size(); ++i) groups.offsets[i] += groups.offsets[i - 1];
  std::vector<int32_t> next = groups.offsets;
  groups.rows.assign(point_cell.size(), -1);
  for (size_t row = 0; row < point_cell.size(); ++row) {
    if (point_cell[row] < 0) continue;
    int32_t& slot = next[static_cast<size_t>(point_cell[row])];
    groups.rows[static_cast<size_t>(slot++)] = static_cast<int32_t>(row);
  }
  return groups;
}

BevRasterizeArgs raster_args(const CloudBatch& points, const BevGrid& grid,
                             const BevIntensity& intensity) {
  BevRasterizeArgs args;
  args.points = points;
  args.grid = grid;
  args.intensity = intensity;
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
    std::vector<float> sliced(static_cast<size_t>(slices), occupancy ? 0.f : kFill);
    std::vector<bool> hit(static_cast<size_t>(slices), false);
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

void check_case(const Case& c, BevOrientation orientation) {
  const std::string name =
      c.name + ", orientation " + std::to_string(static_cast<int>(orientation));
  const BevGrid grid = grid_of(c, orientation);
  const int64_t cells = c.batches * grid.cells();
  const CloudBatch points = packed(c, c.values.data(), c.offsets.data(), c.num_valid.data());
  // Intensity is column 3 where rows have one, else column 2.
  const int64_t column = c.columns > 3 ? 3 : 2;
  const BevIntensity intensity{c.values.data() + column, DType::kFloat, c.stride};

  BevCellsArgs cells_args;
  cells_args.points = points;
  cells_args.grid = grid;
  std::vector<int32_t> point_cell(static_cast<size_t>(c.rows()), 99);
  cells_args.point_cell = point_cell.data();
  run_on_host(cells_args, backward_for);
  const Groups groups = group(point_cell, cells);

  BevRasterizeArgs args = raster_args(points, grid, intensity);
  args.cell_offsets = groups.offsets.data();
  args.cell_points = groups.rows.data();
  const int planes = args.planes.count;
  std::vector<float> expected(static_cast<size_t>(cells * planes));
  for (int64_t cell = 0; cell < cells; ++cell) {
    const int32_t first = groups.offsets[static_cast<size_t>(cell)];
    const int32_t count = groups.offsets[static_cast<size_t>(cell) + 1] - first;
    const std::vector<float> values =
        expected_cell(args, groups.rows.data() + first, count, c.values.data(), c.stride);
    const int64_t sample = cell / grid.cells();
    for (int p = 0; p < planes; ++p) {
      expected[static_cast<size_t>((sample * planes + p) * grid.cells() + cell % grid.cells())] =
          values[static_cast<size_t>(p)];
    }
  }
  expected = one_nan(expected);

  std::vector<int32_t> counts(static_cast<size_t>((c.batches + 1) * kBevCounts));
  for (const bool threads : {false, true}) {
    std::vector<float> image(expected.size(), 99.f);
    args.image = image.data();
    args.counts = counts.data();
    run_on_host(args, threads ? backward_for : serial_for);
    check_same(one_nan(image), expected, name + (threads ? ", threads" : "") + ": image");
  }

  BevRasterizeBackwardArgs backward;
  backward.points = points;
  backward.grid = grid;
  backward.planes = args.planes;
  std::vector<float> grad(expected.size());
  for (size_t i = 0; i < grad.size(); ++i) grad[i] = static_cast<float>(i % 97) - 48.f;
  std::vector<float> grad_points(static_cast<size_t>(c.rows() * c.columns), 99.f);
  std::vector<float> grad_features(static_cast<size_t>(c.rows()), 99.f);
  backward.grad_image = grad.data();
  backward.grad_points = grad_points.data();
  backward.grad_features = grad_features.data();
  run_on_host(backward);
  std::vector<float> again(grad_points.size(), 99.f);
  backward.grad_points = again.data();
  run_on_host(backward, backward_for);
  check_same(again, grad_points, name + ": gradient with threads");

#ifdef TORCHVOX_CUDA
  if (!has_device()) return;
  const DeviceBuffer<float> values(c.values), device_grad(grad);
  const DeviceBuffer<int64_t> offsets(c.offsets);
  const DeviceBuffer<int32_t> valid(c.num_valid), group_offsets(groups.offsets),
      group_rows(groups.rows);
  const DeviceBuffer<int32_t> device_cell(c.rows());
  cells_args.points = packed(c, values.data(), offsets.data(), valid.data());
  cells_args.point_cell = device_cell.data();
  run_on_device(cells_args);
  check_same(device_cell.host(), point_cell, name + ", CUDA: point_cell");

  const DeviceBuffer<float> image(static_cast<int64_t>(expected.size()));
  const DeviceBuffer<int32_t> device_counts(static_cast<int64_t>(counts.size()));
  args.points = cells_args.points;
  args.intensity.data = values.data() + column;
  args.cell_offsets = group_offsets.data();
  args.cell_points = group_rows.data();
  args.image = image.data();
  args.counts = device_counts.data();
  run_on_device(args);
  check_same(one_nan(image.host()), expected, name + ", CUDA: image");
  check_same(device_counts.host(), counts, name + ", CUDA: counts");

  const DeviceBuffer<float> device_points(c.rows() * c.columns), device_features(c.rows());
  backward.points = cells_args.points;
  backward.grad_image = device_grad.data();
  backward.grad_points = device_points.data();
  backward.grad_features = device_features.data();
  run_on_device(backward);
  check_same(device_points.host(), grad_points, name + ", CUDA: gradient of the points");
  check_same(device_features.host(), grad_features, name + ", CUDA: gradient of the features");
#endif
}

}  // namespace

int main() {
  for (const Case& c : cases()) {
    check_case(c, BevOrientation::kGrid);
    check_case(c, BevOrientation::kImage);
    check_case(c, BevOrientation::kNorthUp);
  }
#ifdef TORCHVOX_CUDA
  if (!has_device()) std::printf("CUDA skipped: no CUDA device\n");
#endif
  return finish("test_bev_rasterize_kernels");
}
