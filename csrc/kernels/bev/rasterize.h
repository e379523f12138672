// SPDX-License-Identifier: Apache-2.0
//
// Entry of bev_rasterize, its gradient, and the cells by which points are grouped for an ordered
// mean. One pass over the points fills integer tables by order-free atomics; one pass over the
// cells turns them into planes.
#pragma once

#include "csrc/kernels/bev/max_height.h"
#include "csrc/kernels/core/ordered_sum.h"

namespace torchvox {

enum class BevChannel : int16_t {
  kHeightMax,
  kHeightMin,
  kHeightMean,
  kHeightRange,
  kHeightNorm,
  kIntensityTop,
  kIntensityMean,
  kIntensityMax,
  kCount,
  kDensity,
  kOccupancy,
  kSlices,
};

// One plane of the image. For kOccupancy and kSlices also: which slice of how many, and the row of
// BevRasterTables::sliced where the slicing begins.
struct BevPlane {
  BevChannel channel = BevChannel::kHeightMax;
  int16_t slice = 0;
  int16_t slices = 1;
  int16_t table_row = 0;
};

inline constexpr int kBevMaxPlanes = 256;
inline constexpr int kBevMaxDensityBase = 512;

// A column of intensities beside the points.
struct BevIntensity {
  const void* data = nullptr;  // [rows]
  DType dtype = DType::kFloat;
  int64_t stride = 1;  // in elements

  TORCHVOX_HD float operator[](int64_t row) const {
    const float value = load_as<float>(data, dtype, row * stride);
    return dtype == DType::kDouble ? quiet(value) : value;
  }
};

struct BevPlanes {
  int count = 0;
  int sliced_rows = 0;  // rows of the sliced table that all slicings need together
  BevPlane plane[kBevMaxPlanes];
};

// The flat cell of every point, b * cells + cell, or -1: the key that groups points for an ordered
// sum.
struct BevCellsArgs {
  CloudBatch points;
  BevGrid grid;
  int32_t* point_cell = nullptr;  // [rows]
};

struct BevRasterizeArgs {
  CloudBatch points;
  BevIntensity intensity;
  BevGrid grid;
  BevPlanes planes;
  float density[kBevMaxDensityBase];  // density of 0 .. density_base - 1 points
  int density_base = 0;
  double height_steps = 1.;  // steps per meter of the integer height sum
  float fill = 0.f;
  const int32_t* cell_offsets = nullptr;  // [batches * cells + 1], for kIntensityMean
  const int32_t* cell_points = nullptr;  // rows of the points, ascending in each cell
  float* image = nullptr;  // [batches, planes, cells]
  int32_t* counts = nullptr;  // [batches + 1, kBevCounts]
};

struct BevRasterizeBackwardArgs {
  CloudBatch points;
  BevGrid grid;
  BevPlanes planes;
  const float* grad_image = nullptr;  // [batches, planes, cells]
  void* grad_points = nullptr;  // [rows, columns] contiguous, dtype of the points
  void* grad_features = nullptr;  // [rows] contiguous; null: intensity is column 3
  DType features_dtype = DType::kFloat;
};

inline constexpr int64_t kBevLargeCell = 1024;

// Tables over all cells of the batch; null unless a plane needs them. Those that are counted or
// raised start as zeros.
struct BevRasterTables {
  uint64_t* top = nullptr;  // height_key with index: the highest point
  uint32_t* lowest = nullptr;  // ~ordered_bits of the lowest height
  uint32_t* count = nullptr;  // used points
  uint64_t* height_sum = nullptr;  // integer heights above z0
  uint32_t* intensity = nullptr;  // intensity_key of the largest intensity
  uint32_t* sliced = nullptr;  // [sliced_rows, cells]: heights or occupancy bits by slice
  int32_t* counters = nullptr;  // [batches + 1, kBevCounts]; the host leaves the last row alone
  float* mean = nullptr;  // mean intensity of the cells with points
  // CUDA: the cells of more than kBevLargeCell points, in no order.
  int32_t* large_cells = nullptr;
  uint32_t* large_count = nullptr;
  int64_t cells = 0;
  int64_t zero_bytes = 0;  // bytes from the base on that must start as zeros
  int64_t bytes = 0;

  BevRasterTables(const CloudBatch& points, const BevGrid& grid, const BevPlanes& planes,
                  bool backward, void* base) {
    const auto has = [&](auto... channels) {
      return std::any_of(planes.plane, planes.plane + planes.count, [&](const BevPlane& plane) {
        return ((plane.channel == channels) || ...);
      });
    };
    Workspace workspace(base);
    cells = points.clouds * grid.cells();
    top = workspace.take<uint64_t>(cells);
    counters = workspace.take<int32_t>((points.clouds + 1) * kBevCounts);
    if (has(BevChannel::kHeightMean, BevChannel::kCount, BevChannel::kDensity,
            BevChannel::kIntensityMean)) {
      count = workspace.take<uint32_t>(cells);
    }
    if (!backward) {
      if (has(BevChannel::kHeightMin, BevChannel::kHeightRange)) {
        lowest = workspace.take<uint32_t>(cells);
      }
      if (has(BevChannel::kHeightMean)) height_sum = workspace.take<uint64_t>(cells);
      if (has(BevChannel::kIntensityMax)) intensity = workspace.take<uint32_t>(cells);
      if (planes.sliced_rows) sliced = workspace.take<uint32_t>(planes.sliced_rows * cells);
    }
    const bool has_mean = !backward && has(BevChannel::kIntensityMean);
    if (has_mean) large_count = workspace.take<uint32_t>(1);
    zero_bytes = workspace.bytes();
    if (has_mean) {
      mean = workspace.take<float>(cells);
      large_cells = workspace.take<int32_t>(points.rows / kBevLargeCell);
    }
    bytes = workspace.bytes();
  }
};

TORCHVOX_KERNEL_WITH_WORKSPACE(
    BevRasterizeArgs, BevRasterTables(args.points, args.grid, args.planes, false, nullptr).bytes);
TORCHVOX_KERNEL_WITH_WORKSPACE(
    BevRasterizeBackwardArgs,
    BevRasterTables(args.points, args.grid, args.planes, true, nullptr).bytes);

// The flat cell of a point in the batch, or -1.
template <class T>
TORCHVOX_HD void write_flat_cell(const BevCellsArgs& args, int64_t row) {
  const int64_t sample = args.points.packed_owner(row);
  BevPoint point{BevFate::kNonFinite, 0, 0.f};
  if (sample >= 0) point = locate_point<T>(args.points, args.grid, row, sample);
  args.point_cell[row] = point.fate == BevFate::kUsed ? static_cast<int32_t>(point.cell) : -1;
}
TORCHVOX_TYPED_MAP(BevCellsArgs, with_point_type, args.points.dtype, write_flat_cell,
                   args.points.rows, kBevPointsPerTask, 256);

// Orders intensities with every NaN above the rest, as torch.amax has it.
TORCHVOX_HD uint32_t intensity_key(float v) {
  return is_nan(v) ? 0xffffffffu : ordered_bits(v + 0.f);
}
TORCHVOX_HD float key_intensity(uint32_t key) {
  return key == 0xffffffffu ? bit_cast<float>(0x7fc00000u) : from_ordered_bits(key);
}

// Which of `slices` equal slices of the range a height lies in; the last takes the round-off.
TORCHVOX_HD int slice_of(const BevGrid& grid, int slices, float z) {
  const float thickness = (grid.upper[2] - grid.lower[2]) / static_cast<float>(slices);
  const float k = floorf((z - grid.lower[2]) / thickness);
  const float last = static_cast<float>(slices - 1);
  return static_cast<int>(k < last ? k : last);
}

TORCHVOX_HD float height_norm(const BevGrid& grid, float z) {
  return (z - grid.lower[2]) / (grid.upper[2] - grid.lower[2]);
}

// Enters one used point into the tables; true when its cell was empty.
struct RasterVisit {
  BevRasterTables tables;
  BevGrid grid;
  BevIntensity intensity;
  BevPlanes planes;
  double height_steps;

  TORCHVOX_HD bool operator()(const BevPoint& point, int64_t row) const {
    const float z = point.z + 0.f;
    const int64_t cell = point.cell;
    if (tables.lowest) atomic_raise(&tables.lowest[cell], ~ordered_bits(z));
    if (tables.count) atomic_add(&tables.count[cell], 1u);
    if (tables.height_sum) {
      const double above = static_cast<double>(z) - static_cast<double>(grid.lower[2]);
      atomic_add(&tables.height_sum[cell], static_cast<uint64_t>(rint(above * height_steps)));
    }
    if (tables.intensity) atomic_raise(&tables.intensity[cell], intensity_key(intensity[row]));
    if (tables.sliced) {
      for (int p = 0; p < planes.count; ++p) {
        const BevPlane& plane = planes.plane[p];
        const bool occupancy = plane.channel == BevChannel::kOccupancy;
        // The first plane of a slicing stands for all of them.
        if (plane.slice != 0 || !(occupancy || plane.channel == BevChannel::kSlices)) continue;
        const int k = slice_of(grid, plane.slices, z);
        if (occupancy) {
          atomic_set_bits(&tables.sliced[(plane.table_row + k / 32) * tables.cells + cell],
                          1u << (k % 32));
        } else {
          atomic_raise(&tables.sliced[(plane.table_row + k) * tables.cells + cell],
                       ordered_bits(z));
        }
      }
    }
    return atomic_raise(&tables.top[cell], height_key(z, row, uint64_t{}));
  }
};

// Mean intensity of a cell with points: the cascade sum in input order over the count.
TORCHVOX_HD float mean_intensity(const BevRasterizeArgs& args, int64_t cell, uint32_t count) {
  CascadeSum<float> sum;
  for (int64_t i = args.cell_offsets[cell]; i < args.cell_offsets[cell + 1]; ++i) {
    sum.add(args.intensity[args.cell_points[i]]);
  }
  return quiet(sum.total() / static_cast<float>(count));
}

// The value of one plane where there is no point.
TORCHVOX_HD float empty_value(const BevRasterizeArgs& args, const BevPlane& plane) {
  const bool zero = plane.channel == BevChannel::kCount || plane.channel == BevChannel::kDensity ||
      plane.channel == BevChannel::kOccupancy;
  return zero ? 0.f : args.fill;
}

TORCHVOX_HD float occupancy_value(const BevPlane& plane, uint32_t word) {
  return static_cast<float>((word >> (plane.slice % 32)) & 1u);
}
TORCHVOX_HD float slice_value(const BevRasterizeArgs& args, uint32_t key) {
  return key ? from_ordered_bits(key) : args.fill;
}
// The row of the sliced table that a plane is read from.
TORCHVOX_HD const uint32_t* sliced_row(const BevRasterTables& tables, const BevPlane& plane) {
  const int row = plane.channel == BevChannel::kOccupancy ? plane.slice / 32 : plane.slice;
  return tables.sliced + (plane.table_row + row) * tables.cells;
}

// The value of one plane in one cell.
TORCHVOX_HD float plane_value(const BevRasterizeArgs& args, const BevRasterTables& tables,
                              const BevPlane& plane, int64_t cell, uint64_t top) {
  if (top == 0) return empty_value(args, plane);
  switch (plane.channel) {
    case BevChannel::kHeightMax: return key_height(top);
    case BevChannel::kHeightMin: return from_ordered_bits(~tables.lowest[cell]);
    case BevChannel::kHeightMean: {
      const double mean = static_cast<double>(static_cast<int64_t>(tables.height_sum[cell])) /
          static_cast<double>(tables.count[cell]);
      return static_cast<float>(static_cast<double>(args.grid.lower[2]) + mean / args.height_steps);
    }
    case BevChannel::kHeightRange: return key_height(top) - from_ordered_bits(~tables.lowest[cell]);
    case BevChannel::kHeightNorm: return height_norm(args.grid, key_height(top));
    case BevChannel::kIntensityTop: return args.intensity[key_row(top)];
    case BevChannel::kIntensityMean: return tables.mean[cell];
    case BevChannel::kIntensityMax: return key_intensity(tables.intensity[cell]);
    case BevChannel::kCount: return static_cast<float>(tables.count[cell]);
    case BevChannel::kDensity: {
      const uint32_t n = tables.count[cell];
      return n < static_cast<uint32_t>(args.density_base) ? args.density[n] : 1.f;
    }
    case BevChannel::kOccupancy: return occupancy_value(plane, sliced_row(tables, plane)[cell]);
    case BevChannel::kSlices: return slice_value(args, sliced_row(tables, plane)[cell]);
  }
  return 0.f;
}

// First plane of the image, at a cell of the batch; the next plane is grid.cells() further on.
TORCHVOX_HD float* image_at(const BevRasterizeArgs& args, int64_t cell) {
  const int64_t cells = args.grid.cells();
  return args.image + cell / cells * args.planes.count * cells + cell % cells;
}

// Gradients of one point: to its z, and to its intensity.
template <class T>
TORCHVOX_HD void write_raster_gradient(const BevRasterizeBackwardArgs& args,
                                       const BevRasterTables& tables, int64_t row) {
  float to_z = 0.f, to_intensity = 0.f;
  const int64_t sample = args.points.packed_owner(row);
  BevPoint point{BevFate::kNonFinite, 0, 0.f};
  if (sample >= 0) point = locate_point<T>(args.points, args.grid, row, sample);
  if (point.fate == BevFate::kUsed) {
    const int64_t cells = args.grid.cells();
    const float* grad = args.grad_image + sample * args.planes.count * cells + point.cell % cells;
    const bool is_top = key_row(tables.top[point.cell]) == row;
    for (int p = 0; p < args.planes.count; ++p) {
      const float g = grad[p * cells];
      switch (args.planes.plane[p].channel) {
        case BevChannel::kHeightMax:
          if (is_top) to_z += g;
          break;
        case BevChannel::kHeightNorm:
          if (is_top) to_z += g / (args.grid.upper[2] - args.grid.lower[2]);
          break;
        case BevChannel::kHeightMean:
          to_z += g / static_cast<float>(tables.count[point.cell]);
          break;
        case BevChannel::kIntensityTop:
          if (is_top) to_intensity += g;
          break;
        case BevChannel::kIntensityMean:
          to_intensity += g / static_cast<float>(tables.count[point.cell]);
          break;
        default: break;
      }
    }
  }
  T* out = static_cast<T*>(args.grad_points) + row * args.points.columns;
  for (int64_t column = 0; column < args.points.columns; ++column) {
    const bool intensity = column == 3 && args.grad_features == nullptr;
    out[column] = narrow<T>(quiet(column == 2 ? to_z : (intensity ? to_intensity : 0.f)));
  }
  if (args.grad_features) {
    store_as(args.grad_features, args.features_dtype, row, quiet(to_intensity));
  }
}

}  // namespace torchvox
